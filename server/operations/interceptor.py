"""Every call of a listener, counted, and told in the log at its end.

Knows grpc's handlers and statuses. Does not know messages, nor what a call is about, but for its
record. Keeps true: a call counts as one, with the status that its caller gets, however it ends;
labels come from the contract and never from a caller; a line is logged for what asked for an answer
or failed, not for those who poll.
"""

import inspect
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from prometheus_client import CollectorRegistry, Counter, Gauge

from server.operations.record import begin
from server.operations.streams import Writing
from server.operations.traces import Traces
from server.rpc.caller import tenant
from server.rpc.handlers import Behaviour, behaviour_of, running

Context = Any  # grpc's own class is generic in the messages of each method
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
UNKNOWN = "unknown"  # of methods that are nobody's
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)  # statuses of our own faults
log = logging.getLogger(__name__)


class Calls:
    """The calls of all listeners of a worker."""

    def __init__(self, registry: CollectorRegistry, *, traces: Traces | None = None) -> None:
        self._traces = traces
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
        self.open = Gauge(
            *("fourstep_calls_open", "Calls that are being answered, by method."),
            ["listener", "rpc"],
            registry=registry,
        )

    def interceptors(self, listener: str) -> tuple[grpc.aio.ServerInterceptor, ...]:
        """For the server of one listener, before any others."""
        spans = [] if self._traces is None else [self._traces.interceptor()]
        return (Writing(), *spans, _Interceptor(self, listener))

    @contextmanager
    def call(self, listener: str, rpc: str, context: Context) -> Iterator[None]:
        """One call, which the block answers."""
        record, began, way = begin(), time.monotonic(), self._traceparent(context)
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
            self.ended.labels(listener, rpc, code.name).inc()
            if record.request_id or code is not grpc.StatusCode.OK:
                fields = {"listener": listener, "rpc": rpc, "status": code.name, "tenant": tenant()}
                fields |= asdict(record) | {"seconds": time.monotonic() - began, "traceparent": way}
                log.log(logging.ERROR if code in _OURS else logging.INFO, "request", extra=fields)

    def _traceparent(self, context: Context) -> str:
        """Of our own span where there are traces, else the caller's."""
        if self._traces is not None and (own := self._traces.traceparent()):
            return own
        for key, value in context.invocation_metadata() or ():
            if key == "traceparent" and _TRACEPARENT.fullmatch(value):
                return value
        return ""


class _Interceptor(grpc.aio.ServerInterceptor):
    def __init__(self, calls: Calls, listener: str) -> None:
        self._calls, self._listener = calls, listener

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        rpc = _name(handler_call_details.method)
        self._calls.come.labels(self._listener, rpc).inc()
        handler = await continuation(handler_call_details)
        if handler is None:  # grpc says so to the caller
            unimplemented = grpc.StatusCode.UNIMPLEMENTED.name
            self._calls.ended.labels(self._listener, rpc, unimplemented).inc()
            return None
        return running(handler, self._watched(behaviour_of(handler), rpc))

    def _watched(self, behaviour: Behaviour, rpc: str) -> Behaviour:
        """A handler's function, which is of the kind that it was."""

        async def streaming(request: Any, context: Context) -> AsyncIterator[Any]:
            with self._calls.call(self._listener, rpc, context):
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response

        async def answering(request: Any, context: Context) -> Any:
            with self._calls.call(self._listener, rpc, context):
                return await behaviour(request, context)

        return streaming if inspect.isasyncgenfunction(behaviour) else answering


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
    if remaining is not None and remaining <= 0:
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.CANCELLED
