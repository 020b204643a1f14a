"""One grpc handler made of another, for interceptors that put something around what it runs.

Knows the four kinds of methods. Does not know what is put around. Keeps true: a new handler answers
as the old one would, with one message or with a stream of them; a call makes none that an earlier
call has made, and no number of calls makes us keep more than so many.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
from fourstep.v1.errors_pb2 import ErrorReason

from server.rpc.status import Trailing, name_of, reason_for, trailing

Handler = Any  # grpc's own is generic in messages
Behaviour = Callable[..., Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]
# More than there are methods and kinds of refusals. What is made of a server's handlers is to be
# kept by that server: they hold all that it serves.
kept = functools.lru_cache(maxsize=256)
_MAKE = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


class Around(grpc.aio.ServerInterceptor):
    """Puts in each handler's place what `make` makes of it."""

    def __init__(self, make: Callable[[Handler], Handler]) -> None:
        self._made_of = kept(make)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = await continuation(handler_call_details)
        return handler and self._made_of(handler)


def _kind(handler: Handler) -> str:
    return next(kind for kind in _MAKE if getattr(handler, kind) is not None)


def behaviour_of(handler: Handler) -> Behaviour:
    """What it runs, of a request and a context."""
    return getattr(handler, _kind(handler))


def running(handler: Handler, behaviour: Behaviour) -> Handler:
    """The same with another behaviour."""
    return _MAKE[_kind(handler)](
        behaviour,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def receiving(handler: Handler, behaviour: Behaviour) -> Handler:
    """One whose behaviour is given its requests' bytes as they come, be there one, none or more."""
    kind = _kind(handler).replace("unary_", "stream_", 1)
    return _MAKE[kind](behaviour, response_serializer=handler.response_serializer)


class Refusing(grpc.RpcMethodHandler):  # pyright: ignore[reportMissingTypeArgument]
    """Ends every call with `code`, before anything is received; `reason`: as it is counted.

    Of whatever kind the method is: one that is given a stream is called at once, and what answers
    once is less than a generator.
    """

    request_streaming, response_streaming = True, False
    request_deserializer = response_serializer = None
    unary_unary = unary_stream = stream_stream = None

    def __init__(self, code: grpc.StatusCode, reason: str, behaviour: Behaviour) -> None:
        self.code, self.reason, self.stream_unary = code, reason, behaviour


@kept
def refusing(code: grpc.StatusCode, details: str, reason: ErrorReason | None = None) -> Refusing:
    """One with this status."""
    metadata = trailing(code, details, reason)

    async def refuse(_: object, context: Any) -> NoReturn:
        await end(context, code, details, metadata)

    return Refusing(code, name_of(reason_for(code, reason)), refuse)


async def end(context: Any, code: grpc.StatusCode, details: str, metadata: Trailing) -> NoReturn:
    """End a call with this status."""
    try:
        await context.abort(code, details, metadata)
    except grpc.aio.InternalError as error:
        # Its caller has left, or has no time any more, and grpc would call it an error of ours.
        raise asyncio.CancelledError from error
    raise AssertionError("abort raises")
