"""What an answer cost: tokens, steps, how many drafts were right, and time.

Knows steps. Does not know engines or who asked. Keeps true: everything is counted from emitted
tokens, so what was computed behind an answer's end is in no number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphs.plan import MAX_WIDTH
from runtime.request import FinishReason, Step


@dataclass(kw_only=True)
class Numbers:
    """What one answer cost, from emitted tokens only. Times in seconds of the scheduler's clock.

    `step_drafted`, `step_accepted`: drafts that each decode step verified, and accepted.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    tokens: int = 0
    step_drafted: bytearray = field(default_factory=bytearray)
    step_accepted: bytearray = field(default_factory=bytearray)
    preemptions: int = 0
    queued_s: float = 0.0
    first_token_s: float | None = None  # since it was asked for
    total_s: float = 0.0

    @property
    def prefill_s(self) -> float | None:
        """From the slot to the first token."""
        return None if self.first_token_s is None else self.first_token_s - self.queued_s

    @property
    def decode_s(self) -> float | None:
        """From the first token to the end."""
        return None if self.first_token_s is None else self.total_s - self.first_token_s

    def count(self, step: Step) -> None:
        """A decode step."""
        self.step_drafted.append(len(step.drafted))
        self.step_accepted.append(step.accepted)

    @property
    def steps(self) -> int:
        return len(self.step_accepted)

    @property
    def accepted(self) -> tuple[int, ...]:
        """[k]: decode steps that accepted k drafts."""
        return _histogram(self.step_accepted)

    @property
    def drafted_at(self) -> tuple[int, ...]:
        """Drafts verified at each position."""
        return _at_least(_histogram(self.step_drafted))

    @property
    def right_at(self) -> tuple[int, ...]:
        """Drafts accepted at each position."""
        return _at_least(self.accepted)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts of one finished request, from emitted tokens only."""

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    steps: int
    tokens_per_step: float
    drafted_at: tuple[int, ...]  # steps that verified a draft at each position
    acceptance_by_position: tuple[float, ...]


def summarise(prompt_tokens: int, steps: Sequence[Step]) -> Summary:
    """Counts over all steps of a finished request.

    The prefill's token is a step like any other in `completion_tokens`, but `steps` and
    `tokens_per_step` are of decode steps: the tokens one engine call of decode yields.
    """
    last = steps[-1].finish_reason
    assert last is not None, "the request has not finished"
    numbers = Numbers(prompt_tokens=prompt_tokens)
    for step in steps[1:]:
        numbers.count(step)
    committed = sum(len(step.token_ids) for step in steps[1:])
    drafted_at = tuple(steps for steps in numbers.drafted_at if steps)
    rates = zip(numbers.right_at, drafted_at, strict=False)
    return Summary(
        finish_reason=last,
        prompt_tokens=prompt_tokens,
        completion_tokens=1 + committed,
        steps=numbers.steps,
        tokens_per_step=committed / numbers.steps if numbers.steps else 0.0,
        drafted_at=drafted_at,
        acceptance_by_position=tuple(right / verified for right, verified in rates),
    )


def _histogram(counts: bytearray) -> tuple[int, ...]:
    """[k]: how often the count is k."""
    return tuple(counts.count(k) for k in range(MAX_WIDTH))


def _at_least(counts: Sequence[int]) -> tuple[int, ...]:
    """[i]: of how many steps the count was over i."""
    return tuple(sum(counts[position + 1 :]) for position in range(len(counts) - 1))
