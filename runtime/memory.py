"""What each slot has of the block pools: mapped ahead of its text, shared with the prefix cache,
released behind its window.

Knows tables, pools, the cache and what else a text needs to go on somewhere: the last rows of the
history. Does not know requests. Keeps true: a block that others may read is never written; what is
in the cache is what a cold run would compute, bit for bit; the sliding blocks of a slot do not grow
with its text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from graphs.config import ModelConfig
from graphs.footprint import circle
from graphs.history import HISTORY
from graphs.plan import MAX_WIDTH
from graphs.state import BLOCK, SCRATCH_BLOCK, State
from runtime.pools import PoolSizes
from runtime.prefix import Node, PrefixCache, Sliding
from runtime.sizing import rows_held

Owner = TypeVar("Owner", Node, Sliding)


@dataclass
class _Block(Generic[Owner]):
    """A mapped block: the cache's, with its owner there, or the slot's own."""

    number: int
    owner: Owner | None = None


@dataclass
class _Map:
    """One slot: its blocks by place in the text; the text up to `known` blocks is in the cache's
    terms `key`. MTP rows are whole from position `whole_from` on. `oldest`: no sliding block before
    this one is mapped."""

    key: bytes
    full: list[_Block[Node]] = field(default_factory=list)
    sliding: dict[int, _Block[Sliding]] = field(default_factory=dict)
    known: int = 0
    whole_from: int = 0
    oldest: int = 0
    expected: int = 1  # positions that it was let in for
    # Sliding blocks that the end of the prompt sees, or that the text went on from.
    lasting: set[int] = field(default_factory=set)


class Memory:
    """Both pools of one engine's state, whose tables must be empty.

    `depths`: MTP layers in use, 0 where nothing drafts; `reach`: rows that catching up may run over
    again (CatchUp), 0 where nothing does; `largest_call`: most rows of a slot in one call.
    """

    def __init__(
        self,
        state: State,
        config: ModelConfig,
        sizes: PoolSizes,
        *,
        depths: int,
        reach: int,
        largest_call: int,
    ) -> None:
        self._state, self._depths, self._reach = state, depths, reach
        self.sizes, self._largest_call = sizes, largest_call
        layers = (*config.layers, *config.mtp_layers[: len(state.layers) - len(config.layers)])
        self._window = max(layer.window or 0 for layer in layers)
        # The rows that are run again behind a boundary look back a window each.
        seen = -(-(self._window + depths) // BLOCK)
        self.cache = PrefixCache(sizes, seen=seen, depths=depths)
        self._sliding = [
            pool for pool, layer in zip(state.layers, layers, strict=True) if layer.window
        ]
        self._tails = torch.zeros(
            *(1 + sizes.full, depths, config.hidden_dim), device=state.full_table.device
        )
        self._maps: dict[int, _Map] = {}

    def open(self, slot: int, tokens: Sequence[int], salt: str = "", *, reuse: bool = True) -> int:
        """Give `slot` the longest cached prefix of `tokens`; how many positions that is."""
        assert slot not in self._maps
        cache = self.cache
        made = self._maps[slot] = _Map(key=cache.root(salt))
        nodes, seen = cache.match(tokens, salt) if reuse else ([], {})
        made.lasting = {*cache.sight(len(tokens) // BLOCK), *seen}
        if not nodes:
            return 0
        for node in nodes:
            cache.use(node)
            made.full.append(_Block(node.full, node))
        for index, sliding in seen.items():
            cache.use_sliding(sliding)
            made.sliding[index] = _Block(sliding.block, sliding)
        # The last one is looked at again when its copy is whole.
        made.known = len(nodes) - 1
        made.key = nodes[-2].key if made.known else made.key
        if not self._own_last(made, made.known):
            self.close(slot, tokens, 0, 0)
            return self.open(slot, tokens, salt, reuse=False)
        self._write_tables(slot, made)
        self._restore_tail(slot, nodes[-1].full, len(nodes) * BLOCK, tokens)
        return len(nodes) * BLOCK

    def needed(self, positions: int) -> PoolSizes:
        """Blocks that a text of so many positions maps at most."""
        full = -(-positions // BLOCK)
        rows = rows_held(self._largest_call, reach=self._reach, depths=self._depths)
        return PoolSizes(full=full, sliding=min(full, circle(self._window, rows)))

    def fits(self, slot: int, positions: int) -> bool:
        """Whether the pools have what the slot still needs for its first `positions` positions,
        beside what others that were asked about do."""
        self._maps[slot].expected = positions
        full = sliding = 0
        for made in self._maps.values():
            needed = self.needed(made.expected)
            if len(made.full) < needed.full:
                full += needed.full - len(made.full)
                sliding += max(0, needed.sliding - len(made.sliding))
        return full <= self.cache.full.available and sliding <= self.cache.sliding.available

    def reserve(self, slot: int, positions: int) -> bool:
        """Map blocks for the first `positions` positions; False if the pools have too few."""
        made = self._maps[slot]
        state, wanted = self._state, -(-positions // BLOCK)
        while len(made.full) < wanted:
            index = len(made.full)
            # The sliding block first: without it the full one is not counted as mapped.
            if index not in made.sliding:
                if (block := self.cache.sliding.take()) is None:
                    return False
                made.sliding[index] = _Block(block)
                state.sliding_table[slot, index] = block
            if (block := self.cache.full.take()) is None:
                return False
            made.full.append(_Block(block))
            state.full_table[slot, index] = block
        return True

    def advance(self, slot: int, tokens: Sequence[int], computed: int, filled: int) -> None:
        """`computed` positions of `slot` are run and final, the MTP layers are up to date with the
        first `filled` of them. Whole blocks go to the cache, old sliding blocks go back."""
        made = self._maps[slot]
        # Of most steps neither is due.
        if filled >= (made.known + 1) * BLOCK:
            while (made.known + 1) * BLOCK <= self._settled(tokens, computed, filled):
                self._publish(slot, made, tokens, computed, filled)
        needed = self._needed_from(computed, filled) // BLOCK
        if needed > made.oldest:
            for index in [index for index in made.sliding if index < needed]:
                self._release(made, index)
            made.oldest = needed

    def skipped(self, slot: int, end: int) -> None:
        """The MTP layers have left out rows of `slot` before they caught up to position `end`."""
        self._maps[slot].whole_from = end + 1

    def close(self, slot: int, tokens: Sequence[int], computed: int, filled: int) -> None:
        """The slot's text is over; what is whole of it stays in the cache."""
        made = self._maps[slot]
        while (made.known + 1) * BLOCK <= computed:
            self._publish(slot, made, tokens, computed, filled)
        for index in sorted(made.sliding, reverse=True):
            self._release(made, index, lasting=True)
        for block in reversed(made.full):
            if block.owner is None:
                self.cache.full.give(block.number)
            else:
                self.cache.leave(block.owner)
        self._state.full_table[slot] = SCRATCH_BLOCK
        self._state.sliding_table[slot] = SCRATCH_BLOCK
        del self._maps[slot]

    def check(self) -> None:
        """Assert that every block is free, a slot's own, or a node's with as many users as map it;
        for tests, and after a failure."""
        cache, maps = self.cache, self._maps.values()
        full = [block for made in maps for block in made.full]
        sliding = [block for made in maps for block in made.sliding.values()]
        nodes = list(cache.nodes())
        kept = [sliding for node in nodes for sliding in node.sliding]
        for owners, mapped in ((nodes, full), (kept, sliding)):
            for owner in owners:
                assert owner.users == sum(block.owner is owner for block in mapped)
        assert all(one.node.users >= one.users for one in kept)
        for pool, mapped, owned in (
            (cache.full, full, [node.full for node in nodes]),
            (cache.sliding, sliding, [one.block for one in kept]),
        ):
            own = [block.number for block in mapped if block.owner is None]
            numbers = [*own, *owned, *pool.free]
            assert sorted(numbers) == list(range(1, pool.size + 1)), "a block is lost or doubled"

    def _settled(self, tokens: Sequence[int], computed: int, filled: int) -> int:
        """Positions whose MTP rows are final: what they look ahead to was not a draft."""
        known = len(tokens) if filled == computed else filled + 1
        return min(filled, known - self._depths)

    def _needed_from(self, computed: int, filled: int) -> int:
        """The first position whose sliding block may still be read or written."""
        again = min(computed - filled, self._reach)
        return computed - self._window - rows_held(0, reach=again, depths=self._depths)

    def _publish(
        self, slot: int, made: _Map, tokens: Sequence[int], computed: int, filled: int
    ) -> None:
        """The next whole block of the slot's text becomes a node, or completes one."""
        cache, index = self.cache, made.known
        end = (index + 1) * BLOCK
        made.key = cache.next_key(made.key, tokens[index * BLOCK : end])
        made.known += 1
        node, block = cache.get(made.key), made.full[index]
        if node is None:
            node = block.owner = cache.add(made.key, index, block.number)
        elif block.owner is None:  # somebody else's holds the same
            cache.use(node)
            cache.full.give(block.number)
            made.full[index] = _Block(node.full, node)
            self._state.full_table[slot, index] = node.full
        if end > filled or index * BLOCK < made.whole_from:
            return
        settled = end <= self._settled(tokens, computed, filled)
        self._lend(made, node, tuple(tokens[end : end + self._depths]) if settled else None)
        # Else the history has forgotten the rows before the end.
        if computed + MAX_WIDTH - (end - self._depths) <= HISTORY and not node.resumable:
            node.resumable = True
            if self._state.history is not None and self._depths:
                self._tails[node.full] = self._state.history.hidden[slot, self._places(end)]

    def _lend(self, made: _Map, node: Node, ahead: tuple[int, ...] | None) -> None:
        """The slot's own sliding block becomes the node's, if it has none as good."""
        mapped = made.sliding.get(node.index)
        if mapped is not None and mapped.owner is None and node.find(ahead) is None:
            mapped.owner = self.cache.lend(node, mapped.number, ahead)

    def _release(self, made: _Map, index: int, *, lasting: bool = False) -> None:
        block = made.sliding.pop(index)
        if block.owner is None:
            self.cache.sliding.give(block.number)
        else:
            self.cache.leave_sliding(block.owner, first=not lasting and index not in made.lasting)

    def _own_last(self, made: _Map, index: int) -> bool:
        """The rows before the end are run again with other tokens ahead of them, which writes MTP
        keys: into a copy."""
        shared = made.sliding[index]
        assert shared.owner is not None
        if not self._depths:
            return True
        if (block := self.cache.sliding.take()) is None:
            return False
        for pool in self._sliding:
            pool[block] = pool[shared.number]
        self.cache.leave_sliding(shared.owner)
        made.sliding[index] = _Block(block)
        return True

    def _write_tables(self, slot: int, made: _Map) -> None:
        full = torch.tensor([block.number for block in made.full])
        self._state.full_table[slot, : len(full)] = full
        for index, block in made.sliding.items():
            self._state.sliding_table[slot, index] = block.number

    def _restore_tail(self, slot: int, block: int, end: int, tokens: Sequence[int]) -> None:
        history = self._state.history
        if history is None or not self._depths:
            return
        places = self._places(end)
        history.hidden[slot, places] = self._tails[block]
        history.ids[slot, places] = torch.tensor(
            tokens[end - self._depths : end], device=history.ids.device
        )

    def _places(self, end: int) -> torch.Tensor:
        return torch.arange(end - self._depths, end) % HISTORY
