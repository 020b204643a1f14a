"""Which blocks of a pool are free, and which are kept for somebody who may come back for them.

Knows block numbers. Does not know tokens, tables or why a block is kept. Keeps true: block 0 is
scratch and never handed out; a kept block is given up only when none is free, the one that was idle
longest first.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class PoolSizes:
    """Usable blocks of the two pools, one of full layers and one of sliding and MTP layers.

    Raises ValueError.
    """

    full: int
    sliding: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} = {value}: a pool has at least 1 block")


class Pool(Generic[Owner]):
    """Blocks 1 to `size`. An idle owner has a block that nobody uses just now; `evict` makes it
    give up the block and says which it was."""

    def __init__(self, size: int, evict: Callable[[Owner], int]) -> None:
        self.size = size
        self._free = deque(range(1, size + 1))
        self._idle: OrderedDict[Owner, None] = OrderedDict()
        self._evict = evict

    @property
    def available(self) -> int:
        """Blocks that `take` can hand out one after the other."""
        return len(self._free) + len(self._idle)

    @property
    def kept(self) -> int:
        """Blocks of idle owners."""
        return len(self._idle)

    @property
    def used(self) -> int:
        return self.size - self.available

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(self._free)

    def take(self) -> int | None:
        """A block that is the caller's now; None if all are in use."""
        if self._free:
            return self._free.popleft()
        if not self._idle:
            return None
        owner, _ = self._idle.popitem(last=False)
        return self._evict(owner)

    def give(self, block: int) -> None:
        """Take back a block that nobody owns any more."""
        assert 1 <= block <= self.size
        self._free.append(block)

    def rest(self, owner: Owner, *, first: bool = False) -> None:
        """The owner's block has no user any more; `first`: give it up before all others."""
        assert owner not in self._idle
        self._idle[owner] = None
        if first:
            self._idle.move_to_end(owner, last=False)

    def wake(self, owner: Owner) -> None:
        """The owner's block is used again, or no longer the owner's."""
        del self._idle[owner]
