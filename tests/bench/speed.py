"""Tokens a second by draft length, all lengths interleaved in one run.

Interleaving matters: a machine's speed drifts by more than the differences that are measured. Every
round runs each K on the same prompts, the order turned by one each round. Keeps true: all K must
give the same tokens, or the measurement stops.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runtime.engine import Engine
from runtime.generate import generate
from runtime.request import SamplingParams, Step


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One K over all rounds; times are of decode steps, prefill left out."""

    draft_tokens: int
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


def run_prompts(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Pass:
    """Generate from each prompt in turn."""
    tokens, emitted, steps, seconds = [], 0, 0, 0.0
    for prompt in prompts:
        stream = generate(engine, prompt, params)
        made: list[Step] = [next(stream)]  # the prefill and its token
        start = time.perf_counter()
        made += stream
        seconds += time.perf_counter() - start
        steps += len(made) - 1
        emitted += sum(len(step.token_ids) for step in made[1:])
        tokens.append(tuple(token for step in made for token in step.token_ids))
    return Pass(tokens=tuple(tokens), emitted=emitted, steps=steps, seconds=seconds)


def measure(
    engines: Sequence[Engine],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    rounds: int,
    progress: Callable[[str], None],
) -> list[Speed]:
    """One Speed an engine, after an unmeasured pass of each."""
    first = [run_prompts(engine, prompts, params) for engine in engines]
    if len({each.tokens for each in first}) != 1:
        raise RuntimeError("the draft lengths gave different tokens; nothing was measured")
    speeds = [
        Speed(draft_tokens=engine.draft_tokens, tokens_per_step=one.emitted / one.steps)
        for engine, one in zip(engines, first, strict=True)
    ]
    for number in range(rounds):
        for index in range(len(engines)):
            at = (index + number) % len(engines)
            one = run_prompts(engines[at], prompts, params)
            speeds[at].tokens_per_second.append(one.emitted / one.seconds)
            speeds[at].step_ms.append(1000 * one.seconds / one.steps)
        progress(f"round {number + 1} of {rounds}")
    return speeds
