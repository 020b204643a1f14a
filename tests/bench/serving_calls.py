"""What a client of a worker sees: one answer, many streams at once, a pace under refusals.

Knows calls and the clock. Keeps true: what is timed is counted at the client, in its own process,
which takes next to no processor time.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from fourstep.v1 import control_pb2, control_pb2_grpc, inference_pb2_grpc
from fourstep.v1 import inference_pb2 as pb

from tests.bench.lean import Lean

GENERATE = "/fourstep.v1.Inference/Generate"
REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
PATIENCE = 60.0  # seconds: what takes longer never comes
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
    """All at once, in their order, by one connection."""
    requests = [request_of(each).SerializeToString() for each in asked]
    with Lean(address) as client:
        streams = {client.start(GENERATE, request): Stream() for request in requests}
        left = len(streams)
        while left:
            for came in client.receive():
                if came.message is None:
                    left -= 1
                    continue
                stream = streams[came.call]
                stream.times.append(time.perf_counter())
                stream.tokens.extend(pb.GenerateResponse.FromString(came.message).token_ids)
    return list(streams.values())


@dataclass(kw_only=True)
class Pace:
    """Messages a second of all running streams, without and with refusals beside them."""

    alone: float
    beside: float
    refused: int  # in the second window
    seconds: float


class _Streams:
    """Calls of one connection; how many messages they have got, and how many have ended."""

    def __init__(self, client: Lean) -> None:
        self._client = client
        self.messages = self.ended = 0

    def start(self, asked: Sequence[Asked]) -> None:
        for each in asked:
            self._client.start(GENERATE, request_of(each).SerializeToString())

    def read(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            for came in self._client.receive(left):
                self.messages += came.message is not None
                self.ended += came.message is None

    def pace(self, seconds: float) -> float:
        """Messages a second, for so many seconds; on a slow machine until one has come."""
        before, start = self.messages, time.perf_counter()
        self.read(seconds)
        while self.messages == before and time.perf_counter() < start + PATIENCE:
            self.read(seconds)
        return (self.messages - before) / (time.perf_counter() - start)


def _until(
    control: control_pb2_grpc.ControlStub,
    meanwhile: Callable[[float], None],
    *,
    running: int,
    queued: int,
) -> None:
    """Until the worker has so many answers, for a minute at most."""
    wanted = {"running": running, "loading": 0, "queued": queued}
    for _ in range(round(PATIENCE / 0.02)):
        load = control.GetLoad(control_pb2.GetLoadRequest())
        if all(getattr(load, name) == value for name, value in wanted.items()):
            return
        meanwhile(0.02)
    raise TimeoutError(f"the worker never had {wanted}")


def pace(
    address: str, asked: Sequence[Asked], *, slots: int, rate: float, seconds: float, first: bool
) -> Pace:
    """`slots` streams run and the rest fill the queue; two windows of so many seconds, in one of
    which more requests are sent at this rate, by a client of their own. `first`: in the first."""
    with grpc.insecure_channel(address) as channel, ThreadPoolExecutor() as pool:
        control = control_pb2_grpc.ControlStub(channel)
        with Lean(address) as client:
            streams = _Streams(client)
            for some, waiting in ((asked[:slots], 0), (asked[slots:], len(asked) - slots)):
                streams.start(some)
                _until(control, streams.read, running=slots, queued=waiting)
            found: dict[bool, float] = {}
            refused = 0
            for beside in (first, not first):
                given = address, asked[0], rate, seconds
                refusals = pool.submit(refusals_of, *given) if beside else None
                found[beside] = streams.pace(seconds)
                refused += refusals.result() if refusals else 0
        _until(control, time.sleep, running=0, queued=0)  # whose client has left is cancelled
        assert not streams.ended, "the answers were too short for the windows"
        return Pace(alone=found[False], beside=found[True], refused=refused, seconds=seconds)


def refusals_of(address: str, asked: Asked, rate: float, seconds: float) -> int:
    """How many were refused of those that were sent, evenly, however long each takes."""
    request, codes = request_of(asked).SerializeToString(), list[int | None]()
    with Lean(address) as client:
        start, calls = time.perf_counter(), round(rate * seconds)
        for number in range(1, calls + 1):
            client.start(GENERATE, request)
            next_at = start + number / rate
            while (left := next_at - time.perf_counter()) > 0:
                codes += [came.status for came in client.receive(left)]
        while len(codes) < calls:
            codes += [came.status for came in client.receive()]
    return codes.count(REFUSED)
