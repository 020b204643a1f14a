"""One Generate call of any protocol: opened, its outputs as they come, ended once with a status.

Knows contexts, statuses and one Served. Does not know messages: the caller reads and writes them.
Keeps true: whoever stops listening, cancels or runs out of time ends the request within a step; a
call ends once, with a status that says why.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from runtime.answer import Output
from runtime.streams import AsyncStream
from server.operations.record import Record, current
from server.rpc.served import Reading, Served
from server.rpc.status import ERRORS, status_of, status_of_end

# grpc's own class is generic in the messages of each method.
Context = Any


async def refuse(context: Context, code: grpc.StatusCode, details: str) -> NoReturn:
    """End the call with this status."""
    await context.abort(code, details)
    raise AssertionError("abort raises")


def seconds_left(context: Context, cap: float) -> float:
    """Until the caller's deadline, `cap` at most."""
    left = context.time_remaining()
    return cap if left is None else min(left, cap)


@dataclass(frozen=True, kw_only=True)
class Call:
    """`outputs` are those of answers that do well: any other end ends the call."""

    reading: Reading
    outputs: AsyncIterator[Output]


@asynccontextmanager
async def opened(
    served: Served, request_id: str, read: Callable[[], Reading], context: Context, *, size: int
) -> AsyncIterator[Call]:
    """The request that `read` makes of a message of `size` bytes; its end is that of the block."""
    record = current()
    record.called(request_id)

    def recorded() -> Reading:
        reading = read()
        record.asked(reading.request)
        return reading

    try:
        made = await served.open(request_id, recorded, size=size)
    except ERRORS as error:
        await refuse(context, *status_of(error))
    try:
        yield Call(reading=made.reading, outputs=_whole(served, made.stream, context, record))
    finally:
        served.close(made.key)


async def _whole(
    served: Served, stream: AsyncStream, context: Context, record: Record
) -> AsyncIterator[Output]:
    async for output in stream:
        record.seen(output)
        status = output.end and status_of_end(output.end, cut=served.cut)
        if status is not None and stream.overrun:
            status = (grpc.StatusCode.RESOURCE_EXHAUSTED, "the answers were not read")
        if status is not None:
            await refuse(context, *status)
        yield output
