"""How many drafts to verify a step: the width policy.

Knows what a step of each width costs on this SKU and how often each draft position was right in
this request. Does not know tokens or engines. Keeps true: the choice changes speed alone, never a
token; plain decoding costs no drafting, only a look now and then at whether drafting would pay,
and looks cost a small, fixed share of the time.

Expected tokens of a step that verifies k drafts: 1 + a1 + a1*a2 + ... + a1*...*ak, where a_i is the
chance that draft i is right when those before it were.
"""

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from graphs.manifest import Costs
from runtime.catch_up import CatchUp

RATE = 0.06  # weight of one observation in the exponential average
PRIOR_WEIGHT = 6  # observations that the artifact's prior counts for
MARGIN = 1.01  # drafting must promise this much over plain decoding
DRIFT = RATE / 32  # how fast a draft that nobody verifies is thought as good as the one before it
FIRST_LOOK = 16  # rows decoded without drafting before a look has anything to see
LOOK_SHARE = 0.015  # of a request's time that looking may take, besides its first look


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Microseconds of one step by number of drafts verified, drafting included where there is any.

    `look` is what looking costs by the rows that were decoded without drafting, the last one for
    any more rows as well; empty where nothing can look. After `limit` rows it is too late.
    """

    plain: float
    drafted: Sequence[float]  # [k-1] for k = 1..K
    look: Sequence[float]  # [rows]
    limit: int | None

    @classmethod
    def of(cls, costs: Costs, *, batch: int, draft_tokens: int, catch_up: CatchUp) -> "StepCosts":
        """From an artifact's table; a width that was not built costs what the next wider one does.

        Raises ValueError if the table is empty: this model was not timed.
        """
        if not costs.verify:
            raise ValueError(
                "the artifact has no step costs (the model did not fit the machine that built it): "
                "fix the width with --spec-tokens"
            )

        def cost(table: Mapping[str, float], width: int) -> float:
            return min(
                value
                for shape, value in table.items()
                if shape.startswith(f"{batch}x") and int(shape.partition("x")[2]) >= width
            )

        drafted = [
            cost(costs.verify, 1 + k) + cost(costs.draft, 1 + k) for k in range(1, 1 + draft_tokens)
        ]
        looks = [
            sum(costs.observe[str(piece.size)] for piece in catch_up.pieces(0, rows))
            for rows in range(catch_up.reach + 1 if catch_up.sizes else 0)
        ]
        plain = cost(costs.verify, 1)
        return cls(plain=plain, drafted=drafted, look=looks, limit=catch_up.limit)

    def step(self, drafts: int) -> float:
        """A step that verifies so many; one that drafts without verifying counts as plain."""
        return self.drafted[drafts - 1] if drafts else self.plain

    def looking(self, unseen: int) -> float:
        """A look after so many rows."""
        return self.look[min(unseen, len(self.look) - 1)] if self.look else 0.0


def costs_by_batch(
    costs: Costs, batches: Sequence[int], *, draft_tokens: int, catch_up: CatchUp
) -> dict[int, StepCosts]:
    """For each batch. Raises ValueError as StepCosts.of."""
    return {
        batch: StepCosts.of(costs, batch=batch, draft_tokens=draft_tokens, catch_up=catch_up)
        for batch in batches
    }


class WidthPolicy(Protocol):
    """One request's policy. `drafts` says how many drafts to verify next, 0: decode plainly."""

    def drafts(self) -> int: ...

    def verified(self, drafted: int, accepted: int) -> None:
        """A step verified `drafted` drafts and accepted so many."""
        ...

    def observed(self, hits: Sequence[int], trials: Sequence[int]) -> None:
        """Of trials[i] drafts that were not verified, position i would have got hits[i] right."""
        ...

    def looks(self, unseen: int) -> bool:
        """Whether to look now, after so many rows that were decoded without drafting."""
        ...


@dataclass(frozen=True, kw_only=True)
class FixedWidth:
    """The operator's or the request's own number."""

    count: int

    def drafts(self) -> int:
        return self.count

    def verified(self, drafted: int, accepted: int) -> None:
        """A fixed width learns nothing."""

    def observed(self, hits: Sequence[int], trials: Sequence[int]) -> None:
        """A fixed width learns nothing."""

    def looks(self, unseen: int) -> bool:
        return False


@dataclass(kw_only=True)
class AutoWidth:
    """The number of drafts with the most expected tokens a microsecond.

    `tables` are costs by batch; `rates` start as the artifact's prior and follow this request.
    Steps save up for looks, so that these cost LOOK_SHARE of the time whatever one costs.
    """

    tables: Mapping[int, StepCosts]
    rates: list[float]
    costs: StepCosts = field(init=False)
    expected: tuple[float, ...] = field(init=False)  # tokens of a step by drafts verified
    _size: int = field(init=False)
    _settled: bool = field(init=False, default=False)
    _saved: float = field(init=False)  # microseconds
    _seen: list[int] = field(init=False)
    _best: int = field(init=False)

    def __post_init__(self) -> None:
        self._seen = [PRIOR_WEIGHT] * len(self.rates)
        self._size, self.costs = next(iter(self.tables.items()))
        self._saved = self.costs.looking(FIRST_LOOK)
        self._choose()

    def drafts(self) -> int:
        return self._best

    def settle(self, drafts: int, size: int) -> None:
        """What was found best for the `size` slots of the next step."""
        if not self._settled:  # the first look costs nothing; those that share a step share it
            self._saved, self._settled = self._saved / size, True
        self._best, self._size, self.costs = drafts, size, self.tables[size]

    def _choose(self) -> None:
        chances = itertools.accumulate(self.rates, operator.mul)
        self.expected = tuple(itertools.accumulate(chances, initial=1.0))
        self._best = most_a_microsecond(self.expected, self.costs)

    def verified(self, drafted: int, accepted: int) -> None:
        for position in range(min(drafted, accepted + 1)):
            self._learn(position, 1.0 if position < accepted else 0.0, 1)
        if 0 < drafted == accepted < len(self.rates):
            # Else a low rate of the next draft would never be tried again.
            better = self.rates[drafted - 1] - self.rates[drafted]
            self.rates[drafted] += DRIFT * max(0.0, better)
        # Of a step that several share, each pays its part.
        self._saved += LOOK_SHARE * self.costs.step(drafted) / self._size
        if drafted:
            self._choose()

    def observed(self, hits: Sequence[int], trials: Sequence[int]) -> None:
        for position, (hit, count) in enumerate(zip(hits, trials, strict=True)):
            if count:
                self._learn(position, hit / count, count)
        self._choose()

    def looks(self, unseen: int) -> bool:
        if not self.costs.look or unseen < FIRST_LOOK:
            return False
        cost = self.costs.looking(unseen)
        forgets = self.costs.limit is not None and unseen >= self.costs.limit
        if not forgets and cost > self._saved:
            return False
        self._saved -= cost
        return True

    def _learn(self, position: int, share: float, count: int) -> None:
        """A mean at first, an exponential average once that moves faster."""
        for _ in range(count):
            self._seen[position] += 1
            weight = max(RATE, 1 / self._seen[position])
            self.rates[position] += weight * (share - self.rates[position])


def most_a_microsecond(expected: Sequence[float], costs: StepCosts, least: int = 0) -> int:
    """The number of drafts at which these tokens come quickest, if a step verifies `least` drafts
    anyway."""
    best, best_speed = 0, MARGIN * expected[0] / costs.step(least)
    for drafts in range(1, len(expected)):
        speed = expected[drafts] / costs.step(max(drafts, least))
        if speed > best_speed:
            best, best_speed = drafts, speed
    return best


def agree(policies: Sequence[WidthPolicy], sizes: Sequence[int]) -> None:
    """Let those that go by costs want what is best for all in one step, of the smallest of `sizes`
    slots that has them all or else of the last: it takes as long for everybody as for who wants
    most."""
    autos = [policy for policy in policies if isinstance(policy, AutoWidth)]
    if not autos:
        return
    size = next((size for size in sizes if size >= len(policies)), sizes[-1])
    fixed = [policy.drafts() for policy in policies if not isinstance(policy, AutoWidth)]
    together = [sum(tokens) for tokens in zip(*(auto.expected for auto in autos), strict=True)]
    best = most_a_microsecond(together, autos[0].tables[size], max(fixed, default=0))
    for auto in autos:
        auto.settle(best, size)


def policy_for(
    draft_tokens: int | None,
    *,
    most: int,
    costs: Mapping[int, StepCosts] | None,
    prior: Sequence[float],
) -> WidthPolicy:
    """A request's: its own number, by measured costs, or without these all `most` drafts. Raises
    ValueError for a number of drafts that there are not."""
    if draft_tokens is not None:
        if not 0 <= draft_tokens <= most:
            raise ValueError(f"draft_tokens = {draft_tokens}: must be in [0, {most}], or not set")
        return FixedWidth(count=draft_tokens)
    if costs is None or most == 0:
        return FixedWidth(count=most)
    return AutoWidth(tables=costs, rates=list(prior[:most]))
