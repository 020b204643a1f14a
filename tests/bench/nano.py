"""The section on step5-nano: tokens a second by draft length, and against the eager path.

The eager path runs in a process of its own, because loading kernels replaces the reference
operators for good. Keeps true: every number of a round is taken in that round.
"""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from graphs.artifact import Artifact
from runtime.bench.run import Options, Subject, host
from runtime.bench.tables import US, Table, spread
from runtime.engine import Engine
from runtime.request import SamplingParams
from runtime.tokenizer import Tokenizer
from runtime.width import AutoWidth, costs_by_batch
from tests.bench.child import Child
from tests.bench.document import Section
from tests.bench.prompts import prompts
from tests.bench.speed import Runner, Speed, measure
from tests.bench.subjects import NANO, built
from tests.sources import ROOT

ROUNDS, TOKENS, NOISE_TOKENS, CONTEXT = 7, 96, 512, 1024
GREEDY = SamplingParams(max_tokens=TOKENS)
# So hot that no draft can be right but by chance.
HOT = SamplingParams(max_tokens=NOISE_TOKENS, temperature=4.0, ignore_eos=True)
PLAIN, LAST, AUTO = "0", "3", "auto"
TEXT = f"""\
`make bench` (= `python -m tests.bench nano`): one stream, bf16, at most {TOKENS} tokens a prompt,
{ROUNDS} rounds, everything interleaved; decode steps only, prefill left out. K drafts a step, or as
many as the width policy chooses (auto). code and chat are greedy; noise, {NOISE_TOKENS} tokens, is
sampled so hot that no draft is right but by chance. The gain is over K = 0 of the same round.
eager: the same K = 3 without kernels and compiled blocks, as the reference path runs."""


def run(say: Callable[[str], object]) -> Section:
    what, artifact = built(NANO, say)
    tokenizer = Tokenizer.open(NANO, vocab_size=what.config.vocab_size, bos_id=what.config.bos_id)
    asked = prompts(NANO, tokenizer)
    kinds = {**{kind: (ids, GREEDY) for kind, ids in asked.items()}, "noise": (asked["code"], HOT)}
    runners = make_runners(what, artifact)
    eager: dict[str, list[float]] = {}

    def ask(child: Child) -> None:
        for kind, speed in child.ask().items():
            eager.setdefault(kind, []).append(speed)

    speeds = {}
    command = [sys.executable, "-m", "tests.bench.eager", str(NANO)]
    with Child(command, cwd=ROOT, log=ROOT / "build" / "bench" / "eager.log") as child:
        for kind, (ids, params) in kinds.items():
            say(f"nano: {kind}")
            between = (lambda: ask(child)) if kind == "code" else (lambda: None)
            speeds[kind] = measure(runners, ids, params, rounds=ROUNDS, between=between)
    host_us = US * host(what, 1 + int(LAST), Options())
    return section(speeds, eager, host_us)


def make_runners(what: Subject, artifact: Artifact) -> dict[str, Runner]:
    """K = 0 to 3 by their number, then the width policy."""
    engines = [
        Engine(
            what.config,
            what.weights,
            programs=what.programs,
            plan=what.plan,
            draft_tokens=count,
            context=CONTEXT,
        )
        for count in range(len(what.weights.mtp) + 1)
    ]
    runners = {str(engine.draft_tokens): Runner(engine=engine) for engine in engines}
    table, last = artifact.manifest.costs, engines[-1]
    costs = costs_by_batch(
        table, what.plan.batches, draft_tokens=last.draft_tokens, catch_up=last.catch_up
    )

    def policy() -> AutoWidth:
        return AutoWidth(tables=costs, rates=list(table.acceptance[: last.draft_tokens]))

    return {**runners, AUTO: Runner(engine=last, policy=policy)}


def section(
    speeds: Mapping[str, Mapping[str, Speed]],
    eager: Mapping[str, Sequence[float]],
    host_us: float,
) -> Section:
    """`speeds` by kind of prompt and K; `eager` tokens a second by kind."""
    over = {kind: _over(by_k[LAST], eager[kind]) for kind, by_k in speeds.items() if kind in eager}
    rows = [row for kind, by_k in speeds.items() for row in _rows(kind, by_k)]
    rows += [(kind, "eager", spread(values, 1), "", "", "") for kind, values in eager.items()]
    decode = Table(
        title="Decode",
        columns=("prompts", "K", "tokens/s", "gain", "tokens/step", "ms/step"),
        rows=tuple(rows),
    )
    compared = Table(
        title="K = 3 over the eager path",
        columns=("prompts", "gain"),
        rows=tuple((kind, spread(values, 2)) for kind, values in over.items()),
    )
    outside = Table(
        title="Host, outside the engine's programs, K = 3",
        columns=("", "us/step"),
        rows=(("one stream", f"{host_us:.0f}"),),
    )
    return Section(
        key="nano",
        title="step5-nano",
        text=TEXT,
        tables=(decode, compared, outside),
        numbers={
            "over_eager": min(statistics.median(values) for values in over.values()),
            "host_us": host_us,
            **{f"auto_of_best_{kind}": _of_best(by_k) for kind, by_k in speeds.items()},
        },
    )


def _of_best(by_k: Mapping[str, Speed]) -> float:
    """The policy's speed over the best fixed number's, the median of the rounds."""
    auto = by_k[AUTO]
    fixed = [speed for name, speed in by_k.items() if name != AUTO]
    best = max(fixed, key=lambda speed: statistics.median(speed.tokens_per_second))
    return statistics.median(_over(auto, best.tokens_per_second))


def _over(speed: Speed, others: Sequence[float]) -> list[float]:
    """Round by round."""
    return [ours / theirs for ours, theirs in zip(speed.tokens_per_second, others, strict=True)]


def _rows(kind: str, by_k: Mapping[str, Speed]) -> list[tuple[str, ...]]:
    plain = by_k[PLAIN].tokens_per_second
    rows = []
    for name, speed in by_k.items():
        gains = _over(speed, plain)
        rows.append(
            (
                *(kind, name, spread(speed.tokens_per_second, 1), spread(gains, 2)),
                *(f"{speed.tokens_per_step:.2f}", spread(speed.step_ms, 2)),
            )
        )
    return rows
