"""Pools: what is free, what is kept, and in which order kept blocks are given up."""

import pytest

from runtime.pools import Pool, PoolSizes


def pool_of(size: int) -> tuple[Pool[str], list[str]]:
    """A pool whose owners are named after their blocks, and who was made to give up."""
    gone: list[str] = []

    def evict(owner: str) -> int:
        gone.append(owner)
        return int(owner)

    return Pool(size, evict), gone


def test_every_block_but_scratch_is_handed_out_once() -> None:
    pool, _ = pool_of(3)
    assert sorted(pool.take() or 0 for _ in range(3)) == [1, 2, 3]
    assert pool.take() is None
    assert (pool.used, pool.available) == (3, 0)
    pool.give(2)
    assert (pool.used, pool.available, pool.free) == (2, 1, (2,))
    assert pool.take() == 2


def test_kept_blocks_go_when_none_is_free_the_one_idle_longest_first() -> None:
    pool, gone = pool_of(4)
    for _ in range(3):
        pool.take()
    for owner in ("2", "1", "3"):
        pool.rest(owner)
    assert (pool.used, pool.available) == (0, 4)
    assert (pool.take(), gone) == (4, [])
    pool.wake("2")
    pool.rest("2")  # used in between
    assert [pool.take() for _ in range(3)] == [1, 3, 2]
    assert gone == ["1", "3", "2"]
    assert pool.take() is None


def test_one_may_rest_to_be_given_up_first() -> None:
    pool, _ = pool_of(2)
    for _ in range(2):
        pool.take()
    pool.rest("1")
    pool.rest("2", first=True)
    assert pool.take() == 2


def test_one_that_is_used_is_not_given_up() -> None:
    pool, _ = pool_of(1)
    pool.take()
    pool.rest("1")
    pool.wake("1")
    assert pool.take() is None
    assert pool.used == 1


@pytest.mark.parametrize(("name", "sizes"), [("full", (0, 1)), ("sliding", (1, 0))])
def test_a_pool_has_a_block(name: str, sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"{name} = 0: a pool has at least 1 block"):
        PoolSizes(full=sizes[0], sliding=sizes[1])
