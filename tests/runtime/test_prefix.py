"""The prefix cache by itself: which prefix matches, who sees which sliding blocks, what goes first.

Texts here have one block a letter; nothing is computed.
"""

from collections.abc import Sequence

from graphs.state import BLOCK
from runtime.pools import PoolSizes
from runtime.prefix import Node, PrefixCache

DEPTHS = 2


def text(letters: str, more: int = 1) -> list[int]:
    """A block of each letter, and the beginning of another one."""
    return [ord(letter) for letter in letters for _ in range(BLOCK)] + [0] * more


def cache_of(*, size: int = 20, seen: int = 2) -> PrefixCache:
    return PrefixCache(PoolSizes(full=size, sliding=size), seen=seen, depths=DEPTHS)


def keep(cache: PrefixCache, tokens: Sequence[int], salt: str = "", *, idle: bool = True) -> None:
    """As a slot does that runs the text from its beginning and ends, unless it is not `idle`."""
    key, made = cache.root(salt), list[Node]()
    for index in range(len(tokens) // BLOCK):
        end = (index + 1) * BLOCK
        key = cache.next_key(key, tokens[index * BLOCK : end])
        node = cache.get(key)
        if node is None:
            node = cache.add(key, index, cache.full.take() or 0)
        else:
            cache.use(node)
        ahead = tuple(tokens[end : end + DEPTHS])
        sliding = node.find(ahead)
        if sliding is None:
            sliding = cache.lend(node, cache.sliding.take() or 0, ahead)
        else:
            cache.use_sliding(sliding)
        if idle:
            cache.leave_sliding(sliding)
        node.resumable = True
        made.append(node)
    for node in reversed(made) if idle else ():
        cache.leave(node)


def matched(cache: PrefixCache, tokens: Sequence[int], salt: str = "") -> int:
    return len(cache.match(tokens, salt)[0])


def test_the_longest_prefix_of_whole_blocks_less_the_last_token() -> None:
    cache = cache_of()
    keep(cache, text("abc"))
    assert [matched(cache, text(letters)) for letters in ("abcd", "abd", "b", "a", "")] == [
        *(3, 2, 0, 1, 0)
    ]
    assert matched(cache, text("abc", more=0)) == 2
    assert matched(cache, text("ab", more=BLOCK - 1)) == 2


def test_a_block_counts_with_all_that_is_before_it() -> None:
    cache = cache_of()
    keep(cache, text("ab"))
    assert matched(cache, text("bb")) == 0
    changed = text("ab")
    changed[0] += 1
    assert matched(cache, changed) == 0


def test_salts_share_nothing_and_keys_cannot_be_known() -> None:
    cache = cache_of()
    keep(cache, text("ab"), "one")
    assert [matched(cache, text("ab"), salt) for salt in ("", "one", "other")] == [0, 2, 0]
    assert cache_of().root("one") != cache.root("one")


def test_a_text_goes_on_where_the_state_behind_the_block_is_stored() -> None:
    cache = cache_of()
    keep(cache, text("abc"))
    cache.match(text("abc"), "")[0][-1].resumable = False
    assert matched(cache, text("abc")) == 2


def test_a_text_goes_on_where_all_sliding_blocks_in_sight_are_kept() -> None:
    cache = cache_of(seen=2)
    keep(cache, text("abcde"))
    nodes, _ = cache.match(text("abcde"), "")
    [gone] = nodes[2].sliding
    cache.use_sliding(gone)
    cache.leave_sliding(gone, first=True)
    free = len(cache.sliding.free)
    for _ in range(free + 1):
        cache.sliding.take()
    assert nodes[2].sliding == []
    # Behind c and d it would be seen.
    assert [matched(cache, text("abcde"[:count])) for count in range(6)] == [0, 1, 2, 2, 2, 5]


def test_in_sight_are_rows_that_have_seen_the_texts_own_tokens() -> None:
    """But for the last block, whose last rows are run again."""
    cache = cache_of(seen=2)
    keep(cache, text("abx"))
    assert matched(cache, text("aby")) == 2
    key = cache.root("")
    for letter in "aby":
        key = cache.next_key(key, text(letter, more=0))
    by = cache.add(key, 2, cache.full.take() or 0)
    by.resumable = True
    cache.lend(by, cache.sliding.take() or 0, (0, 0))
    # b's rows have seen x.
    assert matched(cache, text("aby")) == 2
    nodes, _ = cache.match(text("ab"), "")
    own = cache.lend(nodes[1], cache.sliding.take() or 0, (ord("y"),) * 2)
    found, seen = cache.match(text("aby"), "")
    assert len(found) == 3
    assert seen[1] is own
    assert cache.match(text("abx"), "")[1][1] is not own


def test_what_is_used_stays_and_the_rest_goes_oldest_first_ends_before_beginnings() -> None:
    cache = cache_of(size=6)
    keep(cache, text("ab"))
    keep(cache, text("cd"), idle=False)
    keep(cache, text("ef"))
    keep(cache, text("a"))  # again
    lengths = []
    for _ in range(4):
        assert cache.full.take() is not None
        lengths.append([matched(cache, text(letters)) for letters in ("ab", "cd", "ef")])
    assert lengths == [[1, 2, 2], [1, 2, 1], [1, 2, 0], [0, 2, 0]]
    assert cache.full.take() is None
    # Their sliding blocks are free with them.
    assert len(cache.sliding.free) == 4


def test_clear_forgets_what_nobody_uses() -> None:
    cache = cache_of()
    keep(cache, text("ab"))
    keep(cache, text("ac"), idle=False)
    cache.clear()
    assert [matched(cache, text(letters)) for letters in ("ab", "ac")] == [1, 2]
    assert (cache.full.used, len(cache.full.free), len(cache)) == (2, 18, 2)
    assert (cache.sliding.used, len(cache.sliding.free)) == (2, 18)
