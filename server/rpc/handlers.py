"""One grpc handler made of another, for interceptors that put something around what it runs.

Knows the four kinds of methods. Does not know what is put around. Keeps true: the new handler is of
the kind that the old one was, and writes what that one would; a call makes none that an earlier
call has made, and no number of calls makes us keep more than so many.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

Handler = Any  # grpc's own is generic in messages
Behaviour = Callable[..., Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]
kept = functools.lru_cache(maxsize=256)  # more than there are methods and kinds of refusals
_MAKE = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


def _kind(handler: Handler) -> str:
    return next(kind for kind in _MAKE if getattr(handler, kind) is not None)


def behaviour_of(handler: Handler) -> Behaviour:
    """What it runs, of a request and a context."""
    return getattr(handler, _kind(handler))


def running(handler: Handler, behaviour: Behaviour, *, raw: bool = False) -> Handler:
    """The same with another behaviour; `raw`: one that is given the request's bytes."""
    return _MAKE[_kind(handler)](
        behaviour,
        request_deserializer=None if raw else handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


@kept
def refusing(code: grpc.StatusCode, details: str) -> Handler:
    """A handler that ends every call with this status."""

    async def refuse(_: object, context: Any) -> None:
        await context.abort(code, details)

    # Of whatever kind the method is: a stream's handler is called before anything is received.
    return grpc.stream_stream_rpc_method_handler(refuse)
