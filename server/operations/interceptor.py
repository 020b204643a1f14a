"""Every call of a listener, counted, and told in the log at its end.

Knows grpc's handlers and statuses. Does not know messages, nor what a call is about, but for its
record. Keeps true: a call counts as one, with the status that its caller gets, however it ends;
a request that ends before it is queued counts as refused, for the reason that its caller is told;
labels come from the contract and never from a caller; a line is logged for what asked for an answer
or failed, not for those who poll; who is sent away at the door gets no line of their own, so that
a flood of them is not one of the log.
"""

import asyncio
import inspect
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from typing import Any

import grpc
from fourstep.v1.errors_pb2 import ErrorReason
from google.protobuf import descriptor_pool
from prometheus_client import CollectorRegistry, Counter, Gauge

from server.operations.record import begin
from server.operations.streams import Writing
from server.operations.traces import Traces
from server.rpc.caller import tenant
from server.rpc.door import ASKS
from server.rpc.handlers import (
    Continuation,
    Handler,
    Refusing,
    behaviour_of,
    kept,
    refusing,
    running,
)
from server.rpc.status import name_of, reason_in

Context = Any  # grpc's own class is generic in the messages of each method
UNKNOWN = "unknown"  # of methods that are nobody's
_NO_METHOD = refusing(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)  # statuses of our own faults
_CLOSE = 0.05  # seconds to its deadline at which a caller's own clock may have ended a call
SAY_EVERY = 1.0  # seconds between lines on calls of one kind that were sent away
Kind = tuple[tuple[str, str], ...]  # of calls that were sent away: the fields of their line
log = logging.getLogger(__name__)


class Calls:
    """The calls of all listeners of a worker."""

    def __init__(self, registry: CollectorRegistry, *, traces: Traces | None = None) -> None:
        self._traces = traces
        self._untold: dict[Kind, int] = {}  # sent away since a line that is still new
        self.come = Counter(
            *("fourstep_calls_begun", "Calls by method, with those that grpc itself turned away."),
            ["listener", "rpc"],
            registry=registry,
        )
        self.ended = Counter(
            *("fourstep_calls", "Calls by method and status, at their end."),
            ["listener", "rpc", "code"],
            registry=registry,
        )
        self._refused = Counter(
            *("fourstep_requests_refused", "Requests not queued, by the reason that is told."),
            ["reason"],
            registry=registry,
        )
        for reason in ErrorReason.values()[1:]:
            self._refused.labels(name_of(reason))  # all of them there from the beginning
        self.open = Gauge(
            *("fourstep_calls_open", "Calls that are being answered, by method."),
            ["listener", "rpc"],
            registry=registry,
        )

    def interceptors(self, listener: Callable[[], str]) -> tuple[grpc.aio.ServerInterceptor, ...]:
        """For the server of one listener, before any others; its name is asked for at calls."""
        spans = [] if self._traces is None else [self._traces.interceptor()]
        return (Writing(), *spans, _Interceptor(self, listener))

    @contextmanager
    def call(self, listener: str, rpc: str, context: Context) -> Iterator[None]:
        """One call, which the block answers."""
        record, began = begin(), time.monotonic()
        code = grpc.StatusCode.OK
        is_open = self.open.labels(listener, rpc)
        is_open.inc()
        try:
            yield
            code = context.code() or code
        except BaseException as error:
            code = _code(error, context)
            raise
        finally:
            is_open.dec()
            if rpc.endswith(ASKS) and not record.queued:
                self._not_queued(context)
            fields: dict[str, Any] = self._counted(listener, rpc, code)
            if record.request_id or code in _OURS:
                fields |= {**asdict(record), "traceparent": self._traceparent(context)}
                fields["seconds"] = time.monotonic() - began
                log.log(logging.ERROR if code in _OURS else logging.INFO, "request", extra=fields)
            elif code is not grpc.StatusCode.OK:
                self._sent_away(tuple(fields.items()))

    def refused(self, listener: str, rpc: str, handler: Refusing) -> None:
        """One call that nobody answers."""
        if rpc.endswith(ASKS):
            self._refused.labels(handler.reason).inc()
        self._sent_away(tuple(self._counted(listener, rpc, handler.code).items()))

    def _counted(self, listener: str, rpc: str, code: grpc.StatusCode) -> dict[str, str]:
        """Count a call; what a line on it begins with."""
        self.ended.labels(listener, rpc, code.name).inc()
        return {"listener": listener, "rpc": rpc, "status": code.name, "tenant": tenant()}

    def _not_queued(self, context: Context) -> None:
        """A request that was refused, or whose caller has left."""
        if reason := reason_in(context.trailing_metadata()):
            self._refused.labels(reason).inc()

    def close(self) -> None:
        """Tell of all that were sent away, when no call comes any more."""
        for kind in list(self._untold):
            self._tell(kind)

    def _sent_away(self, kind: Kind) -> None:
        """A line at once; those of the same kind that follow within SAY_EVERY have one together."""
        if kind in self._untold:
            self._untold[kind] += 1
        else:
            self._untold[kind] = 1
            self._tell_and_wait(kind)

    def _tell_and_wait(self, kind: Kind) -> None:
        if self._tell(kind):
            self._untold[kind] = 0
            asyncio.get_running_loop().call_later(SAY_EVERY, self._tell_and_wait, kind)

    def _tell(self, kind: Kind) -> int:
        """A line on those that have none; how many they were."""
        if calls := self._untold.pop(kind, 0):  # 0 if it was told of at the end
            log.info("sent away", extra={**dict(kind), "calls": calls})
        return calls

    def _traceparent(self, context: Context) -> str:
        """Of our own span where there are traces, else the caller's."""
        if self._traces is not None and (own := self._traces.traceparent()):
            return own
        for key, value in context.invocation_metadata() or ():
            if key == "traceparent" and _TRACEPARENT.fullmatch(value):
                return value
        return ""


class _Interceptor(grpc.aio.ServerInterceptor):
    def __init__(self, calls: Calls, listener: Callable[[], str]) -> None:
        self._calls, self._listener = calls, listener
        self._of = kept(self._watched)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        rpc = _name(handler_call_details.method)
        listener = self._listener()
        self._calls.come.labels(listener, rpc).inc()
        # grpc's own answer to what is no method is an error in the log where its caller has left.
        handler = await continuation(handler_call_details) or _NO_METHOD
        if isinstance(handler, Refusing):  # a flood of them is to cost as little as it can
            self._calls.refused(listener, rpc, handler)
            return handler
        return self._of(handler, rpc, listener)

    def _watched(self, handler: Handler, rpc: str, listener: str) -> Handler:
        behaviour = behaviour_of(handler)

        async def streaming(request: Any, context: Context) -> AsyncIterator[Any]:
            with self._calls.call(listener, rpc, context):
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response

        async def answering(request: Any, context: Context) -> Any:
            with self._calls.call(listener, rpc, context):
                return await behaviour(request, context)

        streams = inspect.isasyncgenfunction(behaviour)
        return running(handler, streaming if streams else answering)


@kept
def _name(method: str) -> str:
    """`/package.Service/Method` without the first stroke, of methods that any contract here has."""
    name = method.removeprefix("/")
    try:
        descriptor_pool.Default().FindMethodByName(name.replace("/", "."))
    except KeyError:
        return UNKNOWN
    return name


def _code(error: BaseException, context: Context) -> grpc.StatusCode:
    """What a call ends with that raised this."""
    said = context.code()
    if said is not None and said is not grpc.StatusCode.OK:
        return said
    if isinstance(error, Exception):
        return grpc.StatusCode.UNKNOWN
    remaining = context.time_remaining()
    if remaining is not None and remaining <= _CLOSE:
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.CANCELLED
