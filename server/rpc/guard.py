"""What a servicer did not expect, as a clean status: no message, bytes that are none, our faults.

Knows grpc's handlers of one request. Does not know messages. Keeps true: a call whose request does
not come is ended, since grpc would leave it without an answer; a caller is told neither what a
parser nor what an exception of ours says, since both may quote a prompt; the log has the
exception's kind and where it was raised, and nothing of a prompt either.
"""

import asyncio
import inspect
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from server.rpc.calls import Context, refuse
from server.rpc.handlers import Around, Behaviour, Handler, behaviour_of, receiving

_LOG = logging.getLogger("fourstep.rpc")
Reader = Callable[[bytes], Any]
Received = AsyncIterator[bytes]
MESSAGE_S = 60.0  # for a request of the largest size to come by a slow line
LEAVING_S = 0.05  # until a call is cancelled whose caller has left, or that grpc turned away


class Guard(Around):
    """To be the innermost one, so that the others see the status that the caller gets."""

    def __init__(self) -> None:
        super().__init__(_guarded)


def _guarded(handler: Handler) -> Handler:
    if handler.request_streaming:
        return handler
    behaviour = behaviour_of(handler)
    if inspect.isasyncgenfunction(behaviour):
        guarded = _generating(behaviour, handler.request_deserializer)
    elif inspect.iscoroutinefunction(behaviour):
        guarded = _awaited(behaviour, handler.request_deserializer)
    else:
        return handler  # a method that nobody wrote: generated code says UNIMPLEMENTED
    return receiving(handler, guarded)


def _awaited(behaviour: Behaviour, read: Reader) -> Behaviour:
    async def guarded(received: Received, context: Context) -> Any:
        request = await _read(read, received, context)
        try:
            return await behaviour(request, context)
        except Exception as error:
            await _fail(error, context)

    return guarded


def _generating(behaviour: Behaviour, read: Reader) -> Behaviour:
    async def guarded(received: Received, context: Context) -> AsyncIterator[Any]:
        request = await _read(read, received, context)
        try:
            async with aclosing(behaviour(request, context)) as messages:
                async for message in messages:
                    yield message
        except Exception as error:
            await _fail(error, context)

    return guarded


async def _read(read: Reader, received: Received, context: Context) -> Any:
    try:
        async with asyncio.timeout(MESSAGE_S):
            data = await anext(received, None)
    except TimeoutError:
        details = f"no whole request came within {MESSAGE_S:g} seconds"
        await refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, details)
    if data is None:
        await asyncio.sleep(LEAVING_S)
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the call has no whole request")
    try:
        return read(data)
    except DecodeError:
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the request is no such message")


async def _fail(error: Exception, context: Context) -> None:
    """Raises; what grpc itself raises to end a call goes on as it is."""
    if isinstance(error, grpc.aio.BaseError):
        raise error
    kind = type(error).__name__
    where = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    _LOG.error("a call failed: %s\n%s", kind, where)
    await refuse(context, grpc.StatusCode.INTERNAL, f"a fault of this worker: {kind}")
