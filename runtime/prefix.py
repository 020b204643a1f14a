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
from dataclasses import dataclass

from graphs.state import BLOCK
from runtime.pools import Pool, PoolSizes


@dataclass(eq=False, kw_only=True)
class Node:
    """A whole block of a text: its block of the full pool and, as long as it is kept, of the
    sliding pool. `resumable`: the state behind its end is stored too, so a text can go on there,
    if the sliding blocks that it sees are kept as well."""

    key: bytes
    index: int  # which block of its text
    full: int
    sliding: int | None = None
    resumable: bool = False
    users: int = 0  # slots that map the full block
    sliding_users: int = 0  # slots that map the sliding block


class PrefixCache:
    """`seen`: how many sliding blocks, its own included, a text reads that goes on behind one."""

    def __init__(self, sizes: PoolSizes, *, seen: int) -> None:
        self.full: Pool[Node] = Pool(sizes.full, self._forget)
        self.sliding: Pool[Node] = Pool(sizes.sliding, self._forget_sliding)
        self._seen = seen
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

    def match(self, tokens: Sequence[int], salt: str) -> list[Node]:
        """The nodes of the longest prefix of `tokens`, less the last one, that a slot can go on
        from."""
        nodes: list[Node] = []
        key = self.root(salt)
        for start in range(0, len(tokens) - BLOCK, BLOCK):
            key = self.next_key(key, tokens[start : start + BLOCK])
            if (node := self._nodes.get(key)) is None:
                break
            nodes.append(node)
        while nodes and not self._resumes(nodes):
            nodes.pop()
        return nodes

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

    def lend(self, node: Node, sliding: int) -> None:
        """A slot's sliding block becomes the node's, with the slot as its user."""
        assert node.sliding is None
        node.sliding, node.sliding_users = sliding, 1

    def use(self, node: Node) -> None:
        if node.users == 0:
            self.full.wake(node)
        node.users += 1

    def leave(self, node: Node) -> None:
        node.users -= 1
        if node.users == 0:
            self.full.rest(node)

    def use_sliding(self, node: Node) -> None:
        assert node.sliding is not None
        if node.sliding_users == 0:
            self.sliding.wake(node)
        node.sliding_users += 1

    def leave_sliding(self, node: Node, *, first: bool = False) -> None:
        """`first`: as in Pool.rest."""
        node.sliding_users -= 1
        if node.sliding_users == 0:
            self.sliding.rest(node, first=first)

    def clear(self) -> None:
        """Forget what nobody uses."""
        for node in [node for node in self._nodes.values() if node.users == 0]:
            self.full.wake(node)
            self.full.give(self._forget(node))
        for node in self._nodes.values():
            if node.sliding is not None and node.sliding_users == 0:
                self.sliding.wake(node)
                self.sliding.give(self._forget_sliding(node))

    def nodes(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def _resumes(self, nodes: Sequence[Node]) -> bool:
        seen = self.sight(len(nodes))
        return nodes[-1].resumable and all(nodes[i].sliding is not None for i in seen)

    def _forget(self, node: Node) -> int:
        assert node.users == node.sliding_users == 0
        del self._nodes[node.key]
        if node.sliding is not None:
            self.sliding.wake(node)
            self.sliding.give(self._forget_sliding(node))
        return node.full

    def _forget_sliding(self, node: Node) -> int:
        assert node.sliding is not None
        assert node.sliding_users == 0
        block, node.sliding = node.sliding, None
        return block
