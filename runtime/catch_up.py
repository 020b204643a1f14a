"""Which rows the MTP layers must run over to draft again after steps that did not draft.

Knows how far back a draft can see, and how long the history remembers. Does not know tokens or
engines. Keeps true: drafts after catching up are those of a from-scratch evaluation (architecture
5.3), though rows too old to matter are left out: a depth attends to a window of rows, each of which
the depth before it made of a window of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from graphs.config import ModelConfig
from graphs.draft_blocks import LOOKED
from graphs.history import HISTORY
from graphs.plan import MAX_WIDTH, EnginePlan


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One observing call: the last `rows` rows up to position `end`, by the engine of `size`."""

    end: int
    rows: int
    size: int


@dataclass(frozen=True, kw_only=True)
class CatchUp:
    """`sizes`: rows of the observing engines, rising, none where nothing drafts; `reach`: rows that
    the last LOOKED predictions depend on, and so most rows to run over; `limit`: rows that may be
    decoded without drafting before the history forgets some of them, None where it holds all of
    `reach`."""

    sizes: tuple[int, ...]
    reach: int
    limit: int | None

    @classmethod
    def of(cls, config: ModelConfig, depths: int, sizes: Sequence[int]) -> "CatchUp":
        """For the first `depths` MTP layers. A layer without a window reaches back to the start."""
        windows = [layer.window or HISTORY for layer in config.mtp_layers[:depths]]
        reach = LOOKED + sum(window - 1 for window in windows)
        # A rejected window overwrites places; the rows before a piece's own are run again.
        kept = HISTORY - MAX_WIDTH - max(0, depths - 1)
        if reach <= kept:
            return cls(sizes=tuple(sizes), reach=reach, limit=None)
        most = kept - max(sizes, default=0)
        return cls(sizes=tuple(sizes), reach=most, limit=most)

    def largest_call(self, plan: EnginePlan, depths: int) -> int:
        """Most rows of one slot that one call runs, or that catching up runs again."""
        return max(plan.largest_call(depths), self.reach + depths)

    def pieces(self, end: int, rows: int) -> list[Piece]:
        """The calls, in order, that catch up with `rows` rows up to position `end`."""
        assert self.sizes, "no engine observes"
        assert self.limit is None or rows <= self.limit, "the history has forgotten rows"
        left, pieces = min(rows, self.reach), list[Piece]()
        while left > 0:
            # Full pieces last: the last predictions say most about the next ones.
            size = next((size for size in self.sizes if size >= left), self.sizes[-1])
            pieces.append(Piece(end=end, rows=min(left, size), size=size))
            end, left = end - pieces[-1].rows, left - pieces[-1].rows
        return pieces[::-1]
