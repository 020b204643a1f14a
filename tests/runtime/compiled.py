"""Engines of the golden checkpoint by how their programs are made, and runs on them to compare.

Knows one inductor artifact, built once into the user's cache under its lock, and the eager compiler
on the same kernels. Keeps true: what a run returns has every bit that a user could see: tokens,
logprobs, drafts and what was accepted.
"""

import dataclasses
from collections.abc import Sequence
from functools import cache

from graphs.artifact import Artifact
from graphs.compile.compiler import Compiler, EagerCompiler
from graphs.plan import EnginePlan
from runtime.engine import Engine
from runtime.exchange import Committed, Turn
from runtime.programs import Programs
from runtime.request import SamplingParams
from runtime.store import find_or_build
from tests.artifacts import PLAN, load, options
from tests.graphs.whole import golden_model


@cache
def inductor_artifact() -> Artifact:
    model = golden_model()
    return find_or_build(model.config, model.weights, options("inductor"))


@cache
def programs(kind: str) -> Programs:
    """`compiled`, or `eager` on the same kernels."""
    loaded = load(inductor_artifact())
    return loaded if kind == "compiled" else Programs(compiler=EagerCompiler())


@cache
def engine(
    kind: str = "compiled",
    draft_tokens: int = 3,
    *,
    widths: tuple[int, ...] = PLAN.widths,
    prefill: tuple[int, ...] = PLAN.prefill,
    batches: tuple[int, ...] = (1,),
) -> Engine:
    """As many slots as the largest batch. Programs of a smaller plan are among those of PLAN."""
    plan = dataclasses.replace(PLAN, widths=widths, prefill=prefill, batches=batches)
    return new_engine(programs(kind), plan, draft_tokens)


def new_engine(made: Programs, plan: EnginePlan = PLAN, draft_tokens: int = 3) -> Engine:
    model = golden_model()
    return Engine(
        *(model.config, model.weights),
        programs=made,
        plan=plan,
        precision="fp32",
        draft_tokens=draft_tokens,
        context=256,
        slots=plan.batches[-1],
    )


def with_compiler(compiler: Compiler, plan: EnginePlan = PLAN) -> Engine:
    """An engine whose calls that compiler loads from the artifact's files."""
    return new_engine(Programs(compiler=compiler, files=programs("compiled").files), plan)


@dataclasses.dataclass(frozen=True)
class Run:
    """The tokens of one request with their logprobs, and each step's drafts and acceptance."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    drafts: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...]

    def cut(self, count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """What must not depend on speculation."""
        return self.tokens[:count], self.logprobs[:count]


@dataclasses.dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    params: SamplingParams


def run(made: Engine, requests: Sequence[Request], count: int = 24) -> list[Run]:
    """All requests side by side, one a slot, until each has `count` tokens."""
    steps = [[made.prefill(r.prompt, slot, r.params)] for slot, r in enumerate(requests)]
    while min(sum(len(one.tokens) for one in slot) for slot in steps) < count:
        turns = [turn(r, slot, steps[slot]) for slot, r in enumerate(requests)]
        for slot, committed in enumerate(made.decode(turns)):
            steps[slot].append(committed)
    return [
        Run(
            tokens=tuple(token for one in slot for token in one.tokens),
            logprobs=tuple(value for one in slot for value in one.logprobs),
            drafts=tuple(one.drafts for one in slot),
            accepted=tuple(one.accepted for one in slot[1:]),
        )
        for slot in steps
    ]


def turn(request: Request, slot: int, steps: Sequence[Committed]) -> Turn:
    done = sum(len(one.tokens) for one in steps)
    last = steps[-1]
    position = len(request.prompt) + done - 1
    return Turn(slot=slot, position=position, token=last.tokens[-1], drafts=last.drafts)
