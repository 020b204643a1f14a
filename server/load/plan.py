"""What a load is made of: how long prompts and answers are, and when requests are due.

Knows numbers and their chances. Does not know texts, calls or clocks. Keeps true: everything is
drawn from the seed, request by request, so two runs with one seed ask for the same at the same
times.
"""

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count

_PART = re.compile(r"(?P<low>\d+)(?:-(?P<high>\d+))?(?::(?P<weight>\d+(?:\.\d+)?))?")


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """A mix of ranges, each with its weight: "64", "32-256", "32:0.7,1024-2048:0.3"."""

    text: str
    ranges: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]

    @classmethod
    def parse(cls, text: str, option: str) -> "Lengths":
        """Raises ValueError naming the option."""
        ranges, weights = [], []
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None:
                raise ValueError(f"{option} {text!r}: expected N, N-M or N:WEIGHT,N-M:WEIGHT")
            low = int(match["low"])
            high = int(match["high"] or low)
            if not 1 <= low <= high:
                raise ValueError(f"{option} {text!r}: {part.strip()} is no range from 1 up")
            ranges.append((low, high))
            weights.append(float(match["weight"] or 1))
        if sum(weights) <= 0:
            raise ValueError(f"{option} {text!r}: no weight is above 0")
        return cls(text=text, ranges=tuple(ranges), weights=tuple(weights))

    @property
    def most(self) -> int:
        return max(high for _, high in self.ranges)

    def draw(self, dice: random.Random) -> int:
        low, high = dice.choices(self.ranges, self.weights)[0]
        return dice.randint(low, high)


NO_LENGTHS = Lengths(text="", ranges=(), weights=())


@dataclass(frozen=True, kw_only=True)
class Load:
    """Open loop: `rate` requests a second arrive on average, by a Poisson process, however many
    are open. Closed loop: `concurrency` are open at any time. Ends after `requests`, or takes no
    more after `duration` seconds. Raises ValueError."""

    prompt: Lengths
    answer: Lengths
    rate: float | None = None
    concurrency: int | None = None
    requests: int | None = None
    duration: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.concurrency is None):
            raise ValueError("give one of --rate (open loop) and --concurrency (closed loop)")
        if self.requests is None and self.duration is None:
            raise ValueError("give --requests, --duration or both")

    def jobs(self) -> Iterator["Job"]:
        """As many as there are; in a closed loop all are due at once."""
        dice = random.Random(self.seed)
        gaps = random.Random(f"arrivals {self.seed}")
        pace = (gaps.expovariate(self.rate) if self.rate else 0.0 for _ in count())
        for index, due in enumerate(accumulate(pace)):
            if index == self.requests or (self.rate and due >= self.until):
                return
            yield Job(
                index=index,
                due=due,
                prompt_tokens=self.prompt.draw(dice),
                answer_tokens=self.answer.draw(dice),
                place=dice.random(),
                seed=dice.getrandbits(63),
            )

    @property
    def until(self) -> float:
        """Seconds after which nothing is begun."""
        return math.inf if self.duration is None else self.duration


@dataclass(frozen=True, kw_only=True)
class Job:
    """One request. `due` in seconds from the start; `place`, 0 to 1, is where in the text its
    prompt begins; `seed` is for its sampling."""

    index: int
    due: float
    prompt_tokens: int
    answer_tokens: int
    place: float
    seed: int
