"""Tokens a second of step5-nano by draft length, all lengths interleaved in one run.

Interleaving matters: a machine's speed drifts by more than the differences that are measured. Every
round runs each K on the same prompts, the order turned by one each round. Keeps true: all K must
give the same tokens, or the measurement stops.
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


@dataclass(frozen=True, kw_only=True)
class Pass:
    """All prompts once: the steps of decode, their time, and the tokens for comparison."""

    tokens: tuple[tuple[int, ...], ...]
    emitted: int
    steps: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.emitted / self.seconds


def run_prompts(runner: Runner, prompts: Iterable[Sequence[int]], params: SamplingParams) -> Pass:
    """Generate from each prompt in turn."""
    tokens, emitted, steps, seconds = [], 0, 0, 0.0
    for prompt in prompts:
        stream = generate(runner.engine, prompt, params, policy=runner.policy())
        made: list[Step] = [next(stream)]  # the prefill and its token
        start = time.perf_counter()
        made += stream
        seconds += time.perf_counter() - start
        steps += len(made) - 1
        emitted += sum(len(step.token_ids) for step in made[1:])
        tokens.append(tuple(token for step in made for token in step.token_ids))
    return Pass(tokens=tuple(tokens), emitted=emitted, steps=steps, seconds=seconds)


def measure(
    runners: Mapping[str, Runner],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    rounds: int,
    between: Callable[[], object] = lambda: None,
) -> dict[str, Speed]:
    """One Speed a runner, after an unmeasured pass of each; `between` runs once a round."""
    first = {name: run_prompts(runner, prompts, params) for name, runner in runners.items()}
    if len({each.tokens for each in first.values()}) != 1:
        raise RuntimeError("the draft lengths gave different tokens; nothing was measured")
    speeds = {name: Speed(tokens_per_step=one.emitted / one.steps) for name, one in first.items()}
    names = list(runners)
    for number in range(rounds):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            one = run_prompts(runners[name], prompts, params)
            speeds[name].tokens_per_second.append(one.tokens_per_second)
            speeds[name].step_ms.append(1000 * one.seconds / one.steps)
        between()
    return speeds
