"""What a request asks for and what comes back: plain frozen data, validated once.

Knows ranges of parameters. Does not know the model, the tokenizer or a transport.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to end; temperature 0 is greedy.

    `top_k` 0, `top_p` 1 and `min_p` 0 are off. `seed` is any 64-bit integer, signed or unsigned;
    `choice` tells the n answers of one seed apart. The model's own stop ids apply unless
    `ignore_eos`. Raises ValueError naming the field that is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    max_tokens: int = 256
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        def require(ok: bool, field: str, allowed: str) -> None:
            if not ok:
                raise ValueError(f"{field} = {getattr(self, field)!r}: must be {allowed}")

        for field in ("top_k", "seed", "choice", "max_tokens"):
            require(type(getattr(self, field)) is int, field, "an integer")
        require(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", ">= 0")
        require(0 <= self.top_k < 2**63, "top_k", "in [0, 2^63) (0: off)")
        require(0 < self.top_p <= 1, "top_p", "in (0, 1]")
        require(0 <= self.min_p <= 1, "min_p", "in [0, 1]")
        require(-(2**63) <= self.seed < 2**64, "seed", "a 64-bit integer")
        require(0 <= self.choice < 2**31, "choice", "in [0, 2^31)")
        require(self.max_tokens >= 1, "max_tokens", ">= 1")


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step committed.

    token_ids: the new tokens, the stop token included. drafted: the drafts that were verified, none
    at the first step. accepted: how many of token_ids were drafts; the first `accepted` ones are,
    the i-th by MTP depth i. finish_reason: set on a request's last step.
    """

    token_ids: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: int
    finish_reason: FinishReason | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts of one finished request, from emitted tokens only."""

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    steps: int
    tokens_per_step: float
    acceptance_by_position: tuple[float, ...]


def summarise(prompt_tokens: int, steps: Sequence[Step]) -> Summary:
    """Counts over all steps of a finished request.

    The prefill's token is a step like any other in `completion_tokens`, but `steps` and
    `tokens_per_step` are of decode steps: the tokens one engine call of decode yields.
    """
    last = steps[-1].finish_reason
    assert last is not None, "the request has not finished"
    decode = steps[1:]
    committed = sum(len(step.token_ids) for step in decode)
    width = max((len(step.drafted) for step in decode), default=0)
    rates = []
    for position in range(width):
        verified = sum(len(step.drafted) > position for step in decode)
        rates.append(sum(step.accepted > position for step in decode) / verified)
    return Summary(
        finish_reason=last,
        prompt_tokens=prompt_tokens,
        completion_tokens=1 + committed,
        steps=len(decode),
        tokens_per_step=committed / len(decode) if decode else 0.0,
        acceptance_by_position=tuple(rates),
    )
