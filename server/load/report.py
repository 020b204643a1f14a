"""What a load's outcomes say: percentiles, rates, goodput, errors by status.

Knows numbers. Does not know calls or layout. Keeps true: latencies are of requests that were
answered whole, shares are of all requests, and a request that failed is never good.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from server.load.run import Outcome

POINTS = (50, 90, 95, 99)
MS = 1e3
OK = "OK"


def first_ms(outcome: Outcome) -> float:
    """From when the request was due."""
    return MS * (outcome.times[0] - outcome.due)


def gaps_ms(outcome: Outcome) -> list[float]:
    return [MS * (b - a) for a, b in zip(outcome.times, outcome.times[1:], strict=False)]


def between_ms(outcome: Outcome) -> float:
    """The mean of an answer's gaps; 0 where it is one message."""
    gaps = len(outcome.times) - 1
    return MS * (outcome.times[-1] - outcome.times[0]) / gaps if gaps else 0.0


def total_ms(outcome: Outcome) -> float:
    return MS * (outcome.ended - outcome.due)


_LIMITED: Mapping[str, Callable[[Outcome], float]] = {
    "ttft": first_ms,
    "between": between_ms,
    "total": total_ms,
}


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Most milliseconds of what is named: ttft, between (an answer's mean), total."""

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> "Goodput":
        """Raises ValueError."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition(":"))
            try:
                limits[name] = float(value)
            except ValueError:
                name = ""
            if name not in _LIMITED or not limits[name] > 0:
                raise ValueError(
                    f"--goodput {text!r}: expected NAME:MILLISECONDS, names {', '.join(_LIMITED)}"
                )
        return cls(limits=limits)

    def good(self, outcome: Outcome) -> bool:
        return outcome.status == OK and all(
            _LIMITED[name](outcome) <= limit for name, limit in self.limits.items()
        )


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of one kind of time, in milliseconds; `points` by percentile."""

    count: int
    mean: float
    points: Mapping[int, float]
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        if not values:
            return None
        found = numpy.percentile(values, POINTS)
        return cls(
            count=len(values),
            mean=float(numpy.mean(values)),
            points=dict(zip(POINTS, map(float, found), strict=True)),
            most=max(values),
        )

    def to_json(self) -> dict[str, float]:
        points = {f"p{point}": value for point, value in self.points.items()}
        return {"count": self.count, "mean": self.mean, **points, "max": self.most}


@dataclass(frozen=True, kw_only=True)
class Report:
    """`seconds`: from the start to the last end. None where nothing was answered."""

    seconds: float
    statuses: Mapping[str, int]
    first: Spread | None
    between: Spread | None
    token: Spread | None
    total: Spread | None
    late: Spread | None
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    tokens_a_step: float
    tokens_a_message: float
    good: int | None

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())

    @property
    def answered(self) -> int:
        return self.statuses.get(OK, 0)

    def share(self, count: int) -> float:
        """Of all requests."""
        return count / self.requests if self.requests else 0.0

    def per_second(self, count: float) -> float:
        return count / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        spreads = {
            "time_to_first_token_ms": self.first,
            "between_messages_ms": self.between,
            "time_per_token_ms": self.token,
            "total_ms": self.total,
            "sent_late_ms": self.late,
        }
        good: dict[str, Any] = {}
        if self.good is not None:
            share = self.share(self.good)
            good = {"good": self.good, "share": share, "per_second": self.per_second(self.good)}
        return {
            "seconds": self.seconds,
            "requests": self.requests,
            "statuses": dict(self.statuses),
            "answered_per_second": self.per_second(self.answered),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "tokens": self.tokens,
            "tokens_per_second": self.per_second(self.tokens),
            "tokens_per_step": self.tokens_a_step,
            "tokens_per_message": self.tokens_a_message,
            **{name: spread and spread.to_json() for name, spread in spreads.items()},
            "goodput": good or None,
        }


def report(outcomes: Sequence[Outcome], goodput: Goodput | None) -> Report:
    whole = [outcome for outcome in outcomes if outcome.status == OK]
    tokens = sum(sum(outcome.tokens) for outcome in whole)
    messages = sum(len(outcome.times) for outcome in whole)
    steps = sum(outcome.steps for outcome in whole)
    gaps = [gap for outcome in whole for gap in gaps_ms(outcome)]
    return Report(
        seconds=max((outcome.ended for outcome in outcomes), default=0.0),
        statuses=dict(Counter(outcome.status for outcome in outcomes).most_common()),
        first=Spread.of([first_ms(outcome) for outcome in whole]),
        between=Spread.of(gaps),
        token=Spread.of([_token_ms(outcome) for outcome in whole if sum(outcome.tokens) > 1]),
        total=Spread.of([total_ms(outcome) for outcome in whole]),
        late=Spread.of([MS * (outcome.sent - outcome.due) for outcome in outcomes]),
        prompt_tokens=sum(outcome.prompt_tokens for outcome in whole),
        cached_tokens=sum(outcome.cached_tokens for outcome in whole),
        tokens=tokens,
        # An answer's first token came from its prompt, without a step.
        tokens_a_step=(tokens - len(whole)) / steps if steps else 0.0,
        tokens_a_message=tokens / messages if messages else 0.0,
        good=None if goodput is None else sum(map(goodput.good, outcomes)),
    )


def _token_ms(outcome: Outcome) -> float:
    """The mean time that a token took once there was a first one."""
    return MS * (outcome.times[-1] - outcome.times[0]) / (sum(outcome.tokens) - 1)
