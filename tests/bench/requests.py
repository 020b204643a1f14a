"""The section on many requests at once: throughput, bookkeeping, cached prefixes, memory.

Knows step5-nano under the scheduler. Keeps true: one stream and eight are measured in turns, by the
same engines, on the same requests; a prompt that is to be cold has a salt that no other had.
"""

import dataclasses
import gc
import itertools
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from graphs.artifact import Artifact
from graphs.plan import EnginePlan
from runtime.answer import Request
from runtime.bench.host import nothing
from runtime.bench.run import Subject
from runtime.bench.tables import US, Table, spread
from runtime.engine import Engine
from runtime.pools import PoolSizes
from runtime.request import SamplingParams
from runtime.scheduler import Scheduler
from runtime.tokenizer import Tokenizer
from runtime.width import costs_by_batch
from tests.bench.document import Section
from tests.bench.prompts import prompts
from tests.bench.subjects import NANO, built

SLOTS, CONTEXT = 8, 8192
PLAN = EnginePlan(batches=(1, SLOTS))
ROUNDS, REQUESTS, TOKENS = 5, 16, 96
HOST_STEPS, PROMPT, MANY = 300, 4096, 10_000
TEXT = f"""\
`make bench` (= `python -m tests.bench requests`): step5-nano under the scheduler, {SLOTS} slots,
engines for batches 1 and {SLOTS}, width policy auto, greedy. Throughput: {REQUESTS} requests of
{TOKENS} tokens, one at a time or {SLOTS} at once, prompts included. Host: a step of {SLOTS} running
answers with the engine's programs left out. Cached prefix: the time to the first token of a prompt
of {PROMPT} tokens, cold and again. Memory: resident, before and after {MANY:,} short requests."""


@dataclass
class Found:
    """Of several rounds."""

    one: list[float] = field(default_factory=list)  # tokens a second
    many: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)
    cold_ms: list[float] = field(default_factory=list)
    again_ms: list[float] = field(default_factory=list)
    resident_mb: tuple[float, float] = (0.0, 0.0)


def run(say: Callable[[str], object]) -> Section:
    what, artifact = built(NANO, say, plan=PLAN)
    tokenizer = Tokenizer.open(NANO, vocab_size=what.config.vocab_size, bos_id=what.config.bos_id)
    asked = [ids for kind in prompts(NANO, tokenizer).values() for ids in kind]
    scheduler, found, number = make_scheduler(what, artifact), Found(), itertools.count()
    empty = make_scheduler(dataclasses.replace(what, programs=nothing()), artifact)
    long = list(itertools.islice(itertools.cycle(asked[0]), PROMPT))
    for turn in range(-1, ROUNDS):
        say(f"requests: round {turn + 1} of {ROUNDS}")
        one = throughput(scheduler, asked, 1, number)
        many = throughput(scheduler, asked, SLOTS, number)
        cold, again = (first_token(scheduler, long, f"salt {turn}", number) for _ in range(2))
        host_us = host(empty, asked, number)
        if turn >= 0:  # the first round warms up
            found.one.append(one)
            found.many.append(many)
            found.cold_ms.append(1e3 * cold)
            found.again_ms.append(1e3 * again)
            found.host_us += host_us
    found.resident_mb = memory_over(scheduler, asked[0], number, say)
    return section(found)


def make_scheduler(what: Subject, artifact: Artifact) -> Scheduler:
    engine = Engine(
        what.config,
        what.weights,
        programs=what.programs,
        plan=what.plan,
        context=CONTEXT,
        slots=SLOTS,
        pools=PoolSizes(full=2 * CONTEXT // 64 + SLOTS * 8, sliding=SLOTS * 16),
    )
    table = artifact.manifest.costs
    costs = costs_by_batch(
        table, what.plan.batches, draft_tokens=engine.draft_tokens, catch_up=engine.catch_up
    )
    gc.freeze()  # as the server does (server.cli_engine)
    return Scheduler(engine, costs=costs, prior=table.acceptance)


def requests(asked: Sequence[Sequence[int]], number: Iterator[int]) -> list[Request]:
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    return [
        Request(id=str(next(number)), prompt=tuple(asked[i % len(asked)]), params=params)
        for i in range(REQUESTS)
    ]


def throughput(
    scheduler: Scheduler, asked: Sequence[Sequence[int]], at_once: int, number: Iterator[int]
) -> float:
    """Tokens a second of all the requests."""
    waiting, tokens, open_ = requests(asked, number), 0, 0
    start = time.perf_counter()
    while waiting or open_:
        while waiting and open_ < at_once:
            scheduler.submit(waiting.pop())
            open_ += 1
        for output in scheduler.step():
            tokens += len(output.step.token_ids) if output.step else 0
            open_ -= output.end is not None
    return tokens / (time.perf_counter() - start)


def first_token(
    scheduler: Scheduler, prompt: Sequence[int], salt: str, number: Iterator[int]
) -> float:
    """Seconds from the request to its first token."""
    params = SamplingParams(max_tokens=1)
    request = Request(id=str(next(number)), prompt=tuple(prompt), params=params, salt=salt)
    start = time.perf_counter()
    scheduler.submit(request)
    while not scheduler.idle:
        scheduler.step()
    return time.perf_counter() - start


def memory_over(
    scheduler: Scheduler, prompt: Sequence[int], number: Iterator[int], say: Callable[[str], object]
) -> tuple[float, float]:
    """Megabytes resident after a tenth of the requests and after all of them."""
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    early = 0.0
    for count in range(MANY):
        if count == MANY // 10:
            early = resident_mb()
            say("requests: counting memory")
        salt = str(count % 100)
        request = Request(id=str(next(number)), prompt=tuple(prompt), params=params, salt=salt)
        scheduler.submit(request)
        while scheduler.load["queued"] >= SLOTS:
            scheduler.step()
    while not scheduler.idle:
        scheduler.step()
    return early, resident_mb()


def resident_mb() -> float:
    """The most there was, so that nothing freed again hides what was needed."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def host(
    scheduler: Scheduler, asked: Sequence[Sequence[int]], number: Iterator[int]
) -> list[float]:
    """Microseconds of steps of a full batch; the scheduler's engine runs empty programs, so each
    answer gets a token a step and offers all its drafts."""
    params = SamplingParams(max_tokens=CONTEXT // 2, ignore_eos=True)
    names = [str(next(number)) for _ in range(SLOTS)]
    for index, name in enumerate(names):
        prompt = tuple(asked[index % len(asked)])
        scheduler.submit(Request(id=name, prompt=prompt, params=params))
    while scheduler.load["running"] < SLOTS:
        scheduler.step()
    times = []
    for _ in range(HOST_STEPS):
        start = time.perf_counter()
        scheduler.step()
        times.append(US * (time.perf_counter() - start))
    for name in names:
        scheduler.cancel(name)
    scheduler.step()
    return times


def section(found: Found) -> Section:
    gains = [many / one for many, one in zip(found.many, found.one, strict=True)]
    shares = [a / c for a, c in zip(found.again_ms, found.cold_ms, strict=True)]
    early, late = found.resident_mb
    rows = (
        ("one at a time, tokens/s", spread(found.one, 0)),
        (f"{SLOTS} at once, tokens/s", spread(found.many, 0)),
        ("gain", spread(gains, 2)),
        (f"host, us/step of {SLOTS}", f"{statistics.median(found.host_us):.0f}"),
        ("first token of a cold prompt, ms", spread(found.cold_ms, 1)),
        ("of the same again, ms", spread(found.again_ms, 1)),
        ("memory after 1,000 and 10,000 requests, MB", f"{early:.0f}, {late:.0f}"),
    )
    return Section(
        key="requests",
        title="Many requests",
        text=TEXT,
        tables=(Table(title="step5-nano", columns=("", "measured"), rows=rows),),
        numbers={
            "gain": statistics.median(gains),
            "host_us": statistics.median(found.host_us),
            "cached_of_cold": statistics.median(shares),
            "memory_growth": late / early,
        },
    )
