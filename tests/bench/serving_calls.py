"""What a client of a worker sees: one answer, many streams at once, a pace under refusals.

Knows calls and the clock. Keeps true: what is timed is counted at the client, in its own process;
refusals come from a client that takes next to no processor time.
"""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from fourstep.v1 import control_pb2, control_pb2_grpc, inference_pb2_grpc
from fourstep.v1 import inference_pb2 as pb

from tests.bench.lean import Lean

GENERATE = "/fourstep.v1.Inference/Generate"
REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
Asked = tuple[str, Mapping[str, Any]]  # a text and its sampling parameters
_numbers = itertools.count()


def request_of(asked: Asked) -> pb.GenerateRequest:
    """No two of them share a cached prefix."""
    text, sampling = asked
    return pb.GenerateRequest(
        prompt=pb.Prompt(text=text),
        sampling=pb.SamplingParams(**sampling),
        cache_salt=f"call {next(_numbers)}",
    )


@dataclass(kw_only=True)
class Stream:
    """One answer: when each message came, in seconds of the clock, and its tokens."""

    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def longest_gap(self) -> float:
        return max((b - a for a, b in itertools.pairwise(self.times)), default=0.0)


def one(client: Lean, asked: Asked) -> list[float]:
    """Milliseconds from the call to each message."""
    request = request_of(asked).SerializeToString()
    start = time.perf_counter()
    return [1e3 * (time.perf_counter() - start) for _ in client.call(GENERATE, request)]


def one_by_grpcio(stub: inference_pb2_grpc.InferenceStub, asked: Asked) -> list[float]:
    """The same, with gRPC's own client for Python."""
    request = request_of(asked)
    start = time.perf_counter()
    return [1e3 * (time.perf_counter() - start) for _ in stub.Generate(request)]


def together(address: str, asked: Sequence[Asked]) -> list[Stream]:
    """All at once, each a stream of its own."""

    async def main() -> list[Stream]:
        async with grpc.aio.insecure_channel(address) as channel:
            return await asyncio.gather(*(_stream(channel, request_of(each)) for each in asked))

    return asyncio.run(main())


async def _stream(channel: grpc.aio.Channel, request: pb.GenerateRequest) -> Stream:
    found = Stream()
    async for message in inference_pb2_grpc.InferenceStub(channel).Generate(request):
        found.times.append(time.perf_counter())
        found.tokens.extend(message.token_ids)
    return found


@dataclass(kw_only=True)
class Pace:
    """Messages a second of all running streams, without and with refusals beside them."""

    alone: float
    beside: float
    refused: int  # in the second window
    seconds: float


def pace(
    address: str, asked: Sequence[Asked], *, slots: int, rate: float, seconds: float, first: bool
) -> Pace:
    """`slots` streams run and the rest fill the queue; two windows of so many seconds, in one of
    which more requests are sent at this rate. `first`: in the first one."""
    return asyncio.run(_pace(address, asked, slots, rate, seconds, first))


async def _pace(
    address: str, asked: Sequence[Asked], slots: int, rate: float, seconds: float, first: bool
) -> Pace:
    async with grpc.aio.insecure_channel(address) as channel:
        counts = [0]
        tasks: list[asyncio.Task[None]] = []
        for some, waiting in ((asked[:slots], 0), (asked[slots:], len(asked) - slots)):
            calls = (_count(channel, request_of(each), counts) for each in some)
            tasks.extend(map(asyncio.create_task, calls))
            await _until(channel, running=slots, queued=waiting)
        found: dict[bool, float] = {}
        refused = 0
        for beside in (first, not first):
            before, start = counts[0], time.perf_counter()
            if beside:
                given = address, request_of(asked[0]).SerializeToString(), rate, seconds
                refused = await asyncio.to_thread(_refusals, *given)
            else:
                await asyncio.sleep(seconds)
            found[beside] = (counts[0] - before) / (time.perf_counter() - start)
        over = [task for task in tasks[:slots] if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _until(channel, running=0, queued=0)
        assert not over, "the answers were too short for the windows"
        return Pace(alone=found[False], beside=found[True], refused=refused, seconds=seconds)


async def _count(channel: grpc.aio.Channel, request: pb.GenerateRequest, counts: list[int]) -> None:
    async for _ in inference_pb2_grpc.InferenceStub(channel).Generate(request):
        counts[0] += 1


async def _until(channel: grpc.aio.Channel, *, running: int, queued: int) -> None:
    stub = control_pb2_grpc.ControlStub(channel)
    while True:
        load = await stub.GetLoad(control_pb2.GetLoadRequest())
        if (load.running, load.loading, load.queued) == (running, 0, queued):
            return
        await asyncio.sleep(0.02)


def _refusals(address: str, request: bytes, rate: float, seconds: float) -> int:
    """How many were refused of those that were sent, evenly, however long each takes."""
    refused = ended = 0
    with Lean(address) as client:
        start, calls = time.perf_counter(), round(rate * seconds)
        for number in range(1, calls + 1):
            client.start(GENERATE, request)
            next_at = start + number / rate
            while (left := next_at - time.perf_counter()) > 0:
                for came in client.receive(left):
                    ended += came.status is not None
                    refused += came.status == REFUSED
        while ended < calls:
            for came in client.receive():
                ended += came.status is not None
                refused += came.status == REFUSED
    return refused
