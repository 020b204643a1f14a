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
from fourstep.v1.errors_pb2 import ErrorReason

from runtime.answer import Output
from runtime.streams import AsyncStream
from server.operations.record import Record, current
from server.rpc.handlers import end
from server.rpc.served import Reading, Served, new_id
from server.rpc.status import ERRORS, NOT_READ, status_of, status_of_end, trailing

# grpc's own class is generic in the messages of each method.
Context = Any
Read = Callable[[str, float], Reading]


async def refuse(
    context: Context, code: grpc.StatusCode, details: str, reason: ErrorReason | None = None
) -> NoReturn:
    """End the call with this status; `reason` None: what the code says."""
    await end(context, code, details, trailing(code, details, reason))


def seconds_left(context: Context, cap: float) -> float:
    """Until the caller's deadline, `cap` at most."""
    left = context.time_remaining()
    return cap if left is None else min(left, cap)


@dataclass(frozen=True, kw_only=True)
class Call:
    """`request_id`: as the caller knows it. `outputs` are those of answers that do well: any other
    end ends the call."""

    request_id: str
    reading: Reading
    outputs: AsyncIterator[Output]


@asynccontextmanager
async def opened(
    served: Served, message: Any, context: Context, read: Read, *, cap: float
) -> AsyncIterator[Call]:
    """The request of a Generate message, which `read` makes of its id and of the seconds that it
    has, `cap` at most; its end is that of the block."""
    request_id = message.request_id or new_id()
    remaining = seconds_left(context, cap)
    record = current()
    record.called(request_id)

    def recorded() -> Reading:
        reading = read(request_id, remaining)
        record.asked(reading.request)
        return reading

    try:
        made = await served.open(request_id, recorded, size=message.ByteSize())
    except ERRORS as error:
        await refuse(context, *status_of(error))
    try:
        outputs = _whole(served, made.stream, context, record)
        yield Call(request_id=request_id, reading=made.reading, outputs=outputs)
    finally:
        served.close(made.key)


async def _whole(
    served: Served, stream: AsyncStream, context: Context, record: Record
) -> AsyncIterator[Output]:
    while (output := await _next(stream, context)) is not None:
        record.seen(output)
        status = output.end and status_of_end(output.end, cut=served.cut)
        if status is not None and stream.overrun:
            status = NOT_READ
        if status is not None:
            await refuse(context, *status)
        yield output


async def _next(stream: AsyncStream, context: Context) -> Output | None:
    """None at the end."""
    try:
        return await anext(stream, None)
    except ERRORS as error:
        await refuse(context, *status_of(error))
