"""EnginePlan: which fixed shapes a model is compiled for.

Knows widths, batches, contexts and prefill sizes, and how a need becomes the smallest shape that
serves it. Does not know programs or machines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from graphs.history import HISTORY

MAX_WIDTH = 4
# The MTP layers catch up in chunks of this many rows at most: their inputs come from the history.
MAX_OBSERVED = HISTORY // 4


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """widths: positions verified a step (1+K); batches: slots a step; contexts: positions a slot;
    prefill: rows a chunk. Each sorted, distinct and positive. Raises ValueError naming the field.
    """

    widths: tuple[int, ...] = (1, 2, 3, 4)
    batches: tuple[int, ...] = (1,)
    contexts: tuple[int, ...] = (4096, 32768, 262144, 1048576)
    prefill: tuple[int, ...] = (32, 256)

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if not values or list(values) != sorted(set(values)) or values[0] < 1:
                raise ValueError(f"{name} = {list(values)}: must be rising positive numbers")
        if self.widths[-1] > MAX_WIDTH:
            raise ValueError(f"widths = {list(self.widths)}: at most {MAX_WIDTH} positions a step")

    @property
    def observed(self) -> tuple[int, ...]:
        """Row counts at which the MTP layers catch up; at least one, whatever chunks there are."""
        return tuple(rows for rows in self.prefill if rows <= MAX_OBSERVED) or (MAX_OBSERVED,)

    def widths_for(self, drafts: int) -> tuple[int, ...]:
        """The widths of use where a step has at most so many drafts. Raises ValueError where none
        is wide enough."""
        widest = smallest(self.widths, 1 + drafts, "width")
        return tuple(width for width in self.widths if width <= widest)

    def largest_call(self, depths: int) -> int:
        """Most rows of one slot in one call, those that `depths` MTP layers run again included."""
        return max(self.prefill[-1] + depths, self.widths[-1])

    def context_for(self, positions: int) -> int:
        """Raises ValueError where no context is that large."""
        return smallest(self.contexts, positions, "context")

    def chunk(self, tokens: int, most: int) -> int:
        """The prefill size to begin with where `tokens` are left: at most `most` if one is."""
        sizes = [size for size in self.prefill if size <= most] or [self.prefill[0]]
        # A size is worth its padding when more than half of it is used.
        fitting = [size for size in sizes if tokens > size // 2]
        return fitting[-1] if fitting else sizes[0]

    def chunks(self, tokens: int) -> list[int]:
        """Prefill sizes that cover `tokens`: the largest first, little padding at the end."""
        sizes: list[int] = []
        while tokens > 0:
            sizes.append(self.chunk(tokens, self.prefill[-1]))
            tokens -= sizes[-1]
        return sizes


def smallest(sizes: Sequence[int], need: int, name: str) -> int:
    """The smallest of rising `sizes` that is at least `need`. Raises ValueError with `name`."""
    for size in sizes:
        if size >= need:
            return size
    raise ValueError(f"{name} {need} is more than the engines were built for: {list(sizes)}")
