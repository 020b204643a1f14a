"""The section on serving: what gRPC adds to the runtime, many streams, refusals, an idle worker.

Knows step5-nano behind a whole worker, and its client on the same cores. Keeps true: answers with
and without gRPC take turns on one engine, in one run; every stream's tokens are compared with those
of the same request alone.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from fourstep.v1 import inference_pb2_grpc

from runtime.bench.tables import Table, spread
from tests.bench.child import Child
from tests.bench.document import Section
from tests.bench.lean import Lean
from tests.bench.prompts import CODE
from tests.bench.serving_calls import (
    Asked,
    Pace,
    Stream,
    one,
    one_by_grpcio,
    pace,
    together,
)
from tests.bench.subjects import NANO
from tests.sources import ROOT

SLOTS, STREAMS, TOKENS = 8, 64, 64
LONG = 3800  # tokens of an answer that runs through both windows
ANSWERS, ROUNDS, WINDOW, RATE, IDLE = 120, 24, 2.0, 200, 20.0
TEXT = f"""\
`make bench` (= `python -m tests.bench serving`): step5-nano behind the whole of `fourstep serve`,
{SLOTS} slots, width policy auto; steps of one answer leave one core to others, as the worker
always does; worker and client are two processes on the same cores, over loopback. Added by gRPC:
{ANSWERS} answers of {TOKENS} tokens from the same process's runtime without gRPC, as many through
it to a client that only reads and writes frames, which is what the bars are for, and as many to
the client of grpcio, whose own work takes the same cores; in turns, no prompt cached; either way
from the prompt's text, which is tokenized, to the first token; between messages is an answer's
mean. Streams: {STREAMS} opened at once, greedy and sampled; right are those that got the tokens of
the same request alone; overtaken: how many later requests had a first token before one, at most.
Refusals: {SLOTS} streams run and the queue is full; windows of {WINDOW:g} s with and without {RATE}
more requests a second, in turns, {ROUNDS} times: rounds differ widely. Idle: processor time of
the worker in {IDLE:g} s with a client connected."""


@dataclass(kw_only=True)
class Added:
    """Of each answer, in milliseconds: first token, mean between messages; CPU a message."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    worker_cpu: float = 0.0
    client_cpu: float = 0.0
    messages: int = 0

    def add(self, ms: Sequence[float]) -> None:
        self.first.append(ms[0])
        self.between.append((ms[-1] - ms[0]) / (len(ms) - 1))


@dataclass(frozen=True, kw_only=True)
class Found:
    """`direct`: without gRPC. `overtaken`: see TEXT. `silence`: the longest within a stream that
    ran, in seconds. `idle`: share of a core."""

    direct: Added
    remote: Added
    by_grpcio: Added
    right: int
    streams: tuple[Stream, ...]
    seconds: float
    paces: tuple[Pace, ...]
    idle: float


def run(say: Callable[[str], object]) -> Section:
    return section(measure(say))


def measure(
    say: Callable[[str], object],
    *,
    checkpoint: Path = NANO,
    compiler: str = "inductor",
    log: Path = ROOT / "build" / "bench" / "serving.log",
    slots: int = SLOTS,
    tokens: int = TOKENS,
    answers: int = ANSWERS,
    streams: int = STREAMS,
    rounds: int = ROUNDS,
    window: float = WINDOW,
    idle: float = IDLE,
) -> Found:
    given = {
        "checkpoint": str(checkpoint),
        "compiler": compiler,
        "slots": slots,
        "queued": streams,
    }
    with worker(given, log) as child, grpc.insecure_channel(child.hello["address"]) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        with Lean(child.hello["address"]) as lean:
            direct, remote, by_grpcio = added(child, lean, stub, answers, tokens, say)
        say("serving: an idle worker")
        share = idle_share(child.pid, idle)
        say(f"serving: {streams} streams")
        right, found, seconds = many(child, streams, tokens)
    with worker({**given, "queued": slots}, log) as child:
        paces = []
        for number in range(rounds):
            say(f"serving: refusals, round {number + 1} of {rounds}")
            paces.append(refusals(child.hello["address"], slots, window, first=number % 2 == 0))
    return Found(
        direct=direct,
        remote=remote,
        by_grpcio=by_grpcio,
        right=right,
        streams=tuple(found),
        seconds=seconds,
        paces=tuple(paces),
        idle=share,
    )


def worker(given: Mapping[str, object], log: Path) -> Child:
    command = [sys.executable, "-m", "tests.bench.serving_worker", json.dumps(dict(given))]
    return Child(command, cwd=ROOT, log=log)


def plain(text: str, tokens: int) -> Asked:
    return text, {"max_tokens": tokens, "ignore_eos": True}


def added(
    child: Child,
    lean: Lean,
    stub: inference_pb2_grpc.InferenceStub,
    answers: int,
    tokens: int,
    say: Callable[[str], object],
) -> tuple[Added, Added, Added]:
    """Without gRPC, with it, and with grpcio's client."""
    found = Added(), Added(), Added()
    calls = (
        lambda asked: ask(child, asked)["ms"],
        lambda asked: one(lean, asked),
        lambda asked: one_by_grpcio(stub, asked),
    )
    ways = list(zip(found, calls, strict=True))
    for number in range(-len(CODE), answers):  # a few to warm up
        if number % 20 == 0:
            say(f"serving: answer {number} of {answers}")
        asked = plain(CODE[number % len(CODE)], tokens)
        turn = number % len(ways)
        for way, call in (*ways[turn:], *ways[:turn]):
            before = cpu_seconds(child.pid), time.process_time()
            ms = call(asked)
            if number >= 0:
                way.add(ms)
                way.worker_cpu += cpu_seconds(child.pid) - before[0]
                way.client_cpu += time.process_time() - before[1]
                way.messages += len(ms)
    return found


def ask(child: Child, asked: Asked) -> dict[str, list[float]]:
    return child.ask(json.dumps({"text": asked[0], "sampling": asked[1]}))


def many(child: Child, streams: int, tokens: int) -> tuple[int, list[Stream], float]:
    """How many were right, all of them, and how long it took."""
    asked: list[Asked] = []
    for number in range(streams):
        text, sampling = plain(CODE[number % len(CODE)], tokens)
        drawn = {"temperature": 0.8, "seed": number} if number % 2 else {}
        asked.append((text, {**sampling, **drawn}))
    alone = [ask(child, each)["tokens"] for each in asked]
    start = time.perf_counter()
    found = together(child.hello["address"], asked)
    seconds = time.perf_counter() - start
    right = sum(stream.tokens == expected for stream, expected in zip(found, alone, strict=True))
    return right, found, seconds


def overtaken(streams: Sequence[Stream]) -> int:
    """The most streams that were asked for later than one and had their first token sooner."""
    first = [stream.times[0] for stream in streams]
    return max(
        sum(later < mine for later in first[number + 1 :]) for number, mine in enumerate(first)
    )


def refusals(address: str, slots: int, window: float, *, first: bool) -> Pace:
    long = [plain(CODE[number % len(CODE)], LONG) for number in range(2 * slots)]
    return pace(address, long, slots=slots, rate=RATE, seconds=window, first=first)


def idle_share(pid: int, seconds: float) -> float:
    """Processor time over time, of a process that has nothing to do."""
    time.sleep(min(1.0, seconds))  # what was asked for last is over
    before, start = cpu_seconds(pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.perf_counter() - start)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def section(found: Found) -> Section:
    shares = [one.beside / one.alone for one in found.paces]
    first, between = (
        statistics.median(remote) - statistics.median(direct)
        for remote, direct in (
            (found.remote.first, found.direct.first),
            (found.remote.between, found.direct.between),
        )
    )
    return Section(
        key="serving",
        title="Serving",
        text=TEXT,
        tables=(_added(found, first, between), _rest(found, shares)),
        numbers={
            "added_first_ms": first,
            "added_message_ms": between,
            "streams_right": found.right,
            "overtaken": overtaken(found.streams),
            "pace_beside_refusals": statistics.median(shares),
            "idle_percent": 100 * found.idle,
        },
    )


def _added(found: Found, first: float, between: float) -> Table:
    def row(name: str, way: Added) -> tuple[str, ...]:
        cpu = (1e3 * seconds / way.messages for seconds in (way.worker_cpu, way.client_cpu))
        middle = (spread(way.first, 2), spread(way.between, 3))
        return name, *middle, *(f"{value:.2f}" for value in cpu)

    return Table(
        title="Added by gRPC, ms",
        columns=(
            *("", "first token", "between messages"),
            *("worker CPU a message", "client CPU a message"),
        ),
        rows=(
            row("runtime alone", found.direct),
            row("through gRPC", found.remote),
            row("to grpcio's client", found.by_grpcio),
            ("added by gRPC, medians", f"{first:.2f}", f"{between:.3f}", "", ""),
        ),
    )


def _rest(found: Found, shares: Sequence[float]) -> Table:
    silence = max(stream.longest_gap for stream in found.streams)
    tokens = sum(len(stream.tokens) for stream in found.streams)
    refused = sum(pace.refused for pace in found.paces)
    window = sum(pace.seconds for pace in found.paces)
    return Table(
        title="Many streams, refusals, nothing to do",
        columns=("", "measured"),
        rows=(
            (f"of {len(found.streams)} streams right", f"{found.right}"),
            ("tokens/s of all", f"{tokens / found.seconds:.0f}"),
            ("overtaken by, at most", f"{overtaken(found.streams)}"),
            ("longest silence within a stream, ms", f"{1e3 * silence:.0f}"),
            ("refusals a second", f"{refused / window:.0f}"),
            (
                f"messages/s of {SLOTS} streams without",
                spread([pace.alone for pace in found.paces], 0),
            ),
            ("with refusals", spread([pace.beside for pace in found.paces], 0)),
            ("with over without", spread(shares, 3)),
            ("idle worker, % of a core", f"{100 * found.idle:.2f}"),
        ),
    )
