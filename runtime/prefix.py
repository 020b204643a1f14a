"""The prefix cache: which whole blocks of which texts are in memory, as a tree of hashed blocks.

Knows tokens, by hash, and who owns the blocks of the two pools. Does not know slots or tensors.
Keeps true: a node's key stands for all tokens up to its block's end, and for the salt they were
asked with; a block in use is never given up; what nobody uses goes least recently used first, ends
of texts before their beginnings.
"""

import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphs.state import BLOCK
from runtime.pools import Pool, PoolSizes


@dataclass(eq=False, kw_only=True)
class Node:
    """A whole block of a text: its block of the full pool and, as long as they are kept, some of
    the sliding pool. `resumable`: the state behind its end is stored too, so a text can go on
    there, if the sliding blocks that it sees are kept as well."""

    key: bytes
    index: int  # which block of its text
    full: int
    sliding: list["Sliding"] = field(default_factory=list)
    resumable: bool = False
    users: int = 0  # slots that map the full block

    def find(self, ahead: tuple[int, ...] | None) -> "Sliding | None":
        """The sliding block for a text that goes on with these tokens; None: any one."""
        return next((s for s in self.sliding if ahead is None or s.ahead == ahead), None)


@dataclass(eq=False, kw_only=True)
class Sliding:
    """A node's block of the sliding pool. The last MTP rows in it have seen the tokens behind the
    block: these, or if `ahead` is None others that did not stay. A text that goes on with other
    tokens has to run these rows again."""

    node: Node
    block: int
    ahead: tuple[int, ...] | None
    users: int = 0  # slots that map it; they map the node's full block as well


class PrefixCache:
    """`seen`: how many sliding blocks, its own included, a text reads that goes on behind one;
    `depths`: how many tokens ahead an MTP row looks."""

    def __init__(self, sizes: PoolSizes, *, seen: int, depths: int) -> None:
        self.full: Pool[Node] = Pool(sizes.full, self._forget)
        self.sliding: Pool[Sliding] = Pool(sizes.sliding, self._forget_sliding)
        self._seen, self._depths = seen, depths
        self._nodes: dict[bytes, Node] = {}
        # Keys cannot be made to collide by someone who does not know the secret.
        self._secret = os.urandom(16)

    def __len__(self) -> int:
        return len(self._nodes)

    def root(self, salt: str) -> bytes:
        """The key before the first block. Texts of different salts share nothing."""
        return hashlib.blake2b(salt.encode(), digest_size=16, key=self._secret).digest()

    def next_key(self, key: bytes, tokens: Sequence[int]) -> bytes:
        """The key of the block of `tokens` behind the one of `key`."""
        assert len(tokens) == BLOCK
        text = key + array("q", tokens).tobytes()
        return hashlib.blake2b(text, digest_size=16, key=self._secret).digest()

    def match(self, tokens: Sequence[int], salt: str) -> tuple[list[Node], dict[int, Sliding]]:
        """The nodes of the longest prefix of `tokens`, less the last one, that a slot can go on
        from, and the sliding blocks that it then sees, by place."""
        nodes: list[Node] = []
        key = self.root(salt)
        for start in range(0, len(tokens) - BLOCK, BLOCK):
            key = self.next_key(key, tokens[start : start + BLOCK])
            if (node := self._nodes.get(key)) is None:
                break
            nodes.append(node)
        while nodes:
            if nodes[-1].resumable and (seen := self._sees(nodes, tokens)) is not None:
                return nodes, seen
            nodes.pop()
        return [], {}

    def sight(self, count: int) -> range:
        """The sliding blocks that a text reads behind its first `count` blocks."""
        return range(max(0, count - self._seen), count)

    def get(self, key: bytes) -> Node | None:
        return self._nodes.get(key)

    def add(self, key: bytes, index: int, full: int) -> Node:
        """A slot's full block becomes a node's, with the slot as its user."""
        assert key not in self._nodes
        node = self._nodes[key] = Node(key=key, index=index, full=full, users=1)
        return node

    def lend(self, node: Node, block: int, ahead: tuple[int, ...] | None) -> Sliding:
        """A slot's sliding block becomes the node's, with the slot as its user."""
        sliding = Sliding(node=node, block=block, ahead=ahead, users=1)
        node.sliding.append(sliding)
        return sliding

    def use(self, node: Node) -> None:
        if node.users == 0:
            self.full.wake(node)
        node.users += 1

    def leave(self, node: Node) -> None:
        node.users -= 1
        if node.users == 0:
            self.full.rest(node)

    def use_sliding(self, sliding: Sliding) -> None:
        if sliding.users == 0:
            self.sliding.wake(sliding)
        sliding.users += 1

    def leave_sliding(self, sliding: Sliding, *, first: bool = False) -> None:
        """`first`: as in Pool.rest."""
        sliding.users -= 1
        if sliding.users == 0:
            self.sliding.rest(sliding, first=first)

    def clear(self) -> None:
        """Forget what nobody uses."""
        for node in [node for node in self._nodes.values() if node.users == 0]:
            self.full.wake(node)
            self.full.give(self._forget(node))
        for node in self._nodes.values():
            self._forget_all_sliding(node)

    def nodes(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def _sees(self, nodes: Sequence[Node], tokens: Sequence[int]) -> dict[int, Sliding] | None:
        """The sliding blocks of a text that goes on behind the nodes; None if one is not kept."""
        found: dict[int, Sliding] = {}
        for index in self.sight(len(nodes)):
            end = (index + 1) * BLOCK
            # The last rows of the last block are run again in any case.
            last = index == len(nodes) - 1
            sliding = nodes[index].find(None if last else tuple(tokens[end : end + self._depths]))
            if sliding is None:
                return None
            found[index] = sliding
        return found

    def _forget(self, node: Node) -> int:
        assert node.users == 0
        del self._nodes[node.key]
        self._forget_all_sliding(node)
        assert not node.sliding, "a slot uses a sliding block of a node that it does not use"
        return node.full

    def _forget_all_sliding(self, node: Node) -> None:
        for sliding in [sliding for sliding in node.sliding if sliding.users == 0]:
            self.sliding.wake(sliding)
            self.sliding.give(self._forget_sliding(sliding))

    def _forget_sliding(self, sliding: Sliding) -> int:
        assert sliding.users == 0
        sliding.node.sliding.remove(sliding)
        return sliding.block
