"""The whole measurement of one model: step time by width and batch, prefill, kinds of blocks, host.

Knows the order of things. Does not know how numbers are shown. Keeps true: every round measures
every case and the memory's speed in between, the order turned by one each round, so that the
machine's drift falls on all alike; a case whose tokens are not plain decoding's ends everything.
"""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from graphs.config import ModelConfig
from graphs.plan import EnginePlan
from graphs.traffic import Load, Reads, decode_reads
from graphs.weights import ModelWeights
from runtime.bench import forced
from runtime.bench.experts import ExpertCounter
from runtime.bench.forced import ForcedError, Track
from runtime.bench.host import host_seconds, nothing
from runtime.bench.kinds import KindTime, StepProfile
from runtime.bench.roof import ReadSpeed
from runtime.engine import Engine
from runtime.programs import Programs

__all__ = ["Case", "ForcedError", "Options", "Result", "Subject", "check", "host", "measure"]

COUNTED_STEPS = 6
PROFILE_RUNS = 12
HOST_STEPS = 200
Progress = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Options:
    """`prefix` positions before the first step; `acceptance` is the mean of tokens committed a
    step where the width allows it."""

    widths: tuple[int, ...] = (1, 2, 3, 4)
    batches: tuple[int, ...] = (1, 4)
    acceptance: float = 3.0
    prefix: int = 256
    steps: int = 16
    rounds: int = 5
    threads: int = 2

    def __post_init__(self) -> None:
        if not self.acceptance >= 1:
            raise ValueError(f"acceptance = {self.acceptance}: a step commits at least 1 token")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One width at one batch, over all rounds. `length`: tokens committed a step and slot; `roof`:
    the memory's speed just before each round's steps, bytes a second."""

    width: int
    batch: int
    length: float
    reads: tuple[Reads, ...]
    distinct: tuple[float, ...]
    step_s: list[float] = field(default_factory=list)  # medians, one a round
    roof: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Result:
    options: Options
    cases: tuple[Case, ...]
    prefill_s: tuple[float, ...]  # of `prefix` rows, one entry a prompt
    kinds: Mapping[int, tuple[KindTime, ...]]  # by width, batch 1
    host_s: Mapping[int, float]  # by width, batch 1: a step outside the engine's programs


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is measured: a model and the programs that run it."""

    config: ModelConfig
    weights: ModelWeights
    programs: Programs
    plan: EnginePlan

    def engine(self, width: int, options: Options, programs: Programs | None = None) -> Engine:
        """The engine that always verifies `width` rows; `programs` in place of the subject's."""
        plan = EnginePlan(
            widths=(width,),
            batches=options.batches,
            contexts=self.plan.contexts,
            prefill=self.plan.prefill,
        )
        return Engine(
            self.config,
            self.weights,
            programs=programs or self.programs,
            plan=plan,
            draft_tokens=width - 1,
            context=max(options.prefix + tokens_needed(options) + width, HOST_STEPS + 2),
            slots=options.batches[-1],
        )


def check(config: ModelConfig, weights: ModelWeights, options: Options) -> None:
    """Raises ValueError for what the model cannot run."""
    depths, positions = len(weights.mtp), config.max_positions
    if options.widths[-1] > 1 + depths:
        raise ValueError(
            f"width = {options.widths[-1]}: this model has {depths} MTP layers, so 1 to "
            f"{1 + depths} positions can be verified a step"
        )
    if (needed := options.prefix + tokens_needed(options)) > positions:
        raise ValueError(f"{needed} positions are needed, the model has {positions}")


def measure(subject: Subject, options: Options, progress: Progress) -> Result:
    """Everything. Raises ValueError for what the model cannot run, ForcedError for engines whose
    tokens depend on the width."""
    check(subject.config, subject.weights, options)
    progress("binding engines")
    engines = {width: subject.engine(width, options) for width in options.widths}
    tracks = record_tracks(engines[min(engines)], options, progress)
    cases = [
        _case(subject, options, tracks[:batch], width, progress)
        for batch in options.batches
        for width in options.widths
    ]
    prefill_s: list[float] = []
    with ReadSpeed(options.threads) as memory:
        for number in range(options.rounds):
            for index in range(len(cases)):
                case = cases[(index + number) % len(cases)]
                case.roof.append(memory.sample())
                prefill_s += _run(engines[case.width], case, tracks, options)
            progress(f"round {number + 1} of {options.rounds}")
        kinds, host_s = {}, {}
        for width, engine in engines.items():
            kinds[width] = _profile(subject, engine, tracks[:1], width, options)
            host_s[width] = host(subject, width, options)
    return Result(
        options=options,
        cases=tuple(cases),
        prefill_s=tuple(prefill_s),
        kinds=kinds,
        host_s=host_s,
    )


def tokens_needed(options: Options) -> int:
    """The longest continuation that a case uses up."""
    return max(
        forced.tokens_needed(min(options.acceptance, width), width, options.steps)
        for width in options.widths
    )


def record_tracks(engine: Engine, options: Options, progress: Progress) -> list[Track]:
    """Random prompts, one a slot of the largest batch, and their plain continuations."""
    vocab = engine.config.vocab_size
    draw = random.Random(11)
    tracks = []
    for number in range(options.batches[-1]):
        prompt = [draw.randrange(vocab) for _ in range(options.prefix)]
        tracks.append(forced.record(engine, prompt, tokens_needed(options)))
        progress(f"continuation {number + 1} of {options.batches[-1]}")
    return tracks


def _case(
    subject: Subject, options: Options, tracks: Sequence[Track], width: int, progress: Progress
) -> Case:
    """The case without times: what its steps read, experts counted on the reference path."""
    length = min(options.acceptance, width)
    engine = subject.engine(width, options, Programs())
    forced.prefill(engine, tracks)
    with ExpertCounter() as counter:
        forced.run(
            engine, tracks, width=width, length=length, steps=min(COUNTED_STEPS, options.steps)
        )
    moe = sum(layer.feed_forward == "moe" for layer in subject.config.layers)
    distinct = counter.means(moe) if moe else []
    middle = options.prefix + int(options.steps * length / 2)
    load = Load(width=width, positions=(middle,) * len(tracks), depths=width - 1)
    reads = decode_reads(subject.config, subject.weights, load, distinct)
    progress(f"experts of width {width} batch {len(tracks)}")
    return Case(
        width=width, batch=len(tracks), length=length, reads=reads, distinct=tuple(distinct)
    )


def _run(engine: Engine, case: Case, tracks: Sequence[Track], options: Options) -> list[float]:
    """One round of one case; returns the prefill times."""
    used = tracks[: case.batch]
    prefill_s = forced.prefill(engine, used)
    seconds = forced.run(engine, used, width=case.width, length=case.length, steps=options.steps)
    case.step_s.append(statistics.median(seconds))
    return prefill_s


def _profile(
    subject: Subject, engine: Engine, tracks: Sequence[Track], width: int, options: Options
) -> tuple[KindTime, ...]:
    """Times by kind of block at batch 1."""
    profile = StepProfile(engine, subject.programs, width=width, depths=width - 1, entries=1)
    forced.prefill(engine, tracks)
    turns = forced.forced_turns(tracks, 0, width - 1, width, engine.config.vocab_size)
    return tuple(profile.run(turns, PROFILE_RUNS))


def host(subject: Subject, width: int, options: Options) -> float:
    """Seconds of a step of one request outside the engine's programs."""
    engine = subject.engine(width, options, nothing())
    return statistics.median(host_seconds(engine, HOST_STEPS)[1:])
