"""Streams that end where they are, when their caller leaves while a message is being written.

Knows that grpc leaves a generator suspended then, to be closed some time later by another task, in
another context. Keeps true: a stream is closed at once, by the task that has opened it, so what it
holds is given back in the same step and what it has set in its context can be taken back.
"""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

_STREAMS = {
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


class Writing(grpc.aio.ServerInterceptor):
    """To be the first: it writes what all others have made of a stream."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        for kind, make in _STREAMS.items():
            behaviour = getattr(handler, kind, None)
            if inspect.isasyncgenfunction(behaviour):
                return make(
                    _writing(behaviour), handler.request_deserializer, handler.response_serializer
                )
        return handler


def _writing(behaviour: Callable[..., Any]) -> Callable[..., Awaitable[None]]:
    async def write(request: Any, context: Any) -> None:
        async with aclosing(behaviour(request, context)) as messages:
            async for message in messages:
                await context.write(message)

    return write
