"""Streams that end where they are, when their caller leaves while a message is being written.

Knows that grpc leaves a generator suspended then, to be closed some time later by another task, in
another context. Keeps true: a stream is closed at once, by the task that has opened it, so what it
holds is given back in the same step and what it has set in its context can be taken back.
"""

import asyncio
import inspect
from contextlib import aclosing
from typing import Any

import grpc

from server.rpc.handlers import Around, Behaviour, Handler, behaviour_of, running


class Writing(Around):
    """To be the first: it writes what all others have made of a stream."""

    def __init__(self) -> None:
        super().__init__(_written)


def _written(handler: Handler) -> Handler:
    behaviour = behaviour_of(handler)
    writes = inspect.isasyncgenfunction(behaviour)
    return running(handler, _writing(behaviour)) if writes else handler


def _writing(behaviour: Behaviour) -> Behaviour:
    async def write(request: Any, context: Any) -> None:
        async with aclosing(behaviour(request, context)) as messages:
            async for message in messages:
                try:
                    await context.write(message)
                except grpc.aio.InternalError as error:
                    # Nobody reads any more, and grpc would call it an error of ours.
                    raise asyncio.CancelledError from error

    return write
