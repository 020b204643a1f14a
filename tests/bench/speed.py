"""Tokens a second of step5-nano by draft length, all lengths interleaved in one run.

Interleaving matters: a machine's speed drifts by more than the differences that are measured. Every
round runs each prompt with every K before the next, the order turned by one each time. Keeps true:
all K must give the same tokens, or the measurement stops.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runtime.engine import Engine
from runtime.generate import generate
from runtime.request import SamplingParams, Step
from runtime.width import WidthPolicy


@dataclass(frozen=True, kw_only=True)
class Runner:
    """An engine, and the policy of each request; None: as many drafts as the engine makes."""

    engine: Engine
    policy: Callable[[], WidthPolicy | None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One runner over all rounds; times are of decode steps, prefill left out."""

    tokens_per_step: float
    tokens_per_second: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Pass:
    """All prompts once: the steps of decode, their time, and the tokens for comparison."""

    tokens: list[tuple[int, ...]] = field(default_factory=list)
    emitted: int = 0
    steps: int = 0
    seconds: float = 0.0

    def add(self, runner: Runner, prompt: Sequence[int], params: SamplingParams) -> None:
        """Generate from one more prompt."""
        stream = generate(runner.engine, prompt, params, policy=runner.policy())
        made: list[Step] = [next(stream)]  # the prefill and its token
        start = time.perf_counter()
        made += stream
        self.seconds += time.perf_counter() - start
        self.steps += len(made) - 1
        self.emitted += sum(len(step.token_ids) for step in made[1:])
        self.tokens.append(tuple(token for step in made for token in step.token_ids))

    @property
    def tokens_per_second(self) -> float:
        return self.emitted / self.seconds


def run_prompts(runner: Runner, prompts: Iterable[Sequence[int]], params: SamplingParams) -> Pass:
    """Generate from each prompt in turn."""
    made = Pass()
    for prompt in prompts:
        made.add(runner, prompt, params)
    return made


def measure(
    runners: Mapping[str, Runner],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    rounds: int,
    between: Callable[[], object] = lambda: None,
) -> dict[str, Speed]:
    """One Speed a runner, after an unmeasured pass of each; `between` runs once a round."""
    names = list(runners)

    def once(number: int) -> dict[str, Pass]:
        passes = {name: Pass() for name in names}
        for turn, prompt in enumerate(prompts, number):
            at = turn % len(names)
            for name in names[at:] + names[:at]:
                passes[name].add(runners[name], prompt, params)
        return passes

    first = once(0)
    if len({tuple(each.tokens) for each in first.values()}) != 1:
        raise RuntimeError("the draft lengths gave different tokens; nothing was measured")
    speeds = {name: Speed(tokens_per_step=one.emitted / one.steps) for name, one in first.items()}
    for number in range(rounds):
        for name, one in once(number).items():
            speeds[name].tokens_per_second.append(one.tokens_per_second)
            speeds[name].step_ms.append(1000 * one.seconds / one.steps)
        between()
    return speeds
