"""window_attention and region_attention: kernel against reference, and rows against each other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphs.ops.attention import region_attention, window_attention
from graphs.ops.library import References
from tests.graphs.ops.attention_cases import (
    BF16,
    FP32,
    Rows,
    check_cuts,
    error,
    few,
    make_rows,
    pool_of,
    random,
    strided,
    tolerance,
)

ROWS = make_rows([(150, 37), (700, 4), (0, 20), (62, 3)], columns=12, padding=2)


class Inputs:
    """Random q, gate and pool for some rows."""

    def __init__(self, rows: Rows, heads: int, groups: int, width: int, dtype: torch.dtype) -> None:
        self.rows = rows
        self.q = random(len(rows), heads, width, seed=5).to(dtype)
        self.gate = strided(random(len(rows), heads, seed=6).to(dtype))
        self.pool = pool_of(rows, groups, width, dtype)

    def window(self, window: int, part: slice = slice(None)) -> Tensor:
        places = self.rows[part].slot, self.rows[part].position, self.rows.table
        return window_attention(self.q[part], self.gate[part], self.pool, *places, window)

    def regions(self, ids: Tensor, part: slice = slice(None)) -> Tensor:
        places = self.rows[part].slot, self.rows[part].position, self.rows.table
        q, gate = self.q[part], self.gate[part]
        return region_attention(q, gate, self.pool, *places, ids[part].contiguous(), 8)

    def clean(self) -> "Inputs":
        """The same with zeros for NaN: the reference multiplies what it masks by zero."""
        self.pool.nan_to_num_(0)
        return self


def chosen(rows: Rows, groups: int, topk: int, *, alike: bool) -> Tensor:
    """Random past regions of each row and KV head; `alike`: nearly the same in every row."""
    ids = torch.full((len(rows), groups, topk), -1)
    taste = random(1 if alike else len(rows), groups, int(rows.position.max()) // 8 + 1, seed=8)
    for row, position in enumerate(rows.position.tolist()):
        past = position // 8
        score = taste[0 if alike else row, :, :past]
        best = score.topk(min(topk, past)).indices.sort(dim=-1).values
        ids[row, :, : best.shape[1]] = best
    return ids


SHAPES = [(8, 2, 48), (5, 1, 33), (6, 3, 24), (16, 1, 64)]


@few
@given(
    shape=st.sampled_from(SHAPES),
    window=st.sampled_from([0, 1, 7, 16, 64, 70]),
    dtype=st.sampled_from([BF16, FP32]),
    runs=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 12)), min_size=1, max_size=3),
)
def test_window_matches_the_reference(
    isa: str,
    shape: tuple[int, int, int],
    window: int,
    dtype: torch.dtype,
    runs: list[tuple[int, int]],
) -> None:
    rows = make_rows(runs, columns=5, padding=1)
    inputs = Inputs(rows, *shape, dtype)
    found = inputs.window(window)[rows.valid]
    with References():
        expected = inputs.clean().window(window)[rows.valid]
    assert error(found, expected) < tolerance(dtype)


@few
@given(
    shape=st.sampled_from(SHAPES),
    topk=st.sampled_from([1, 4, 9]),
    alike=st.booleans(),
    dtype=st.sampled_from([BF16, FP32]),
    runs=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 12)), min_size=1, max_size=3),
)
def test_regions_match_the_reference(
    isa: str,
    shape: tuple[int, int, int],
    topk: int,
    alike: bool,
    dtype: torch.dtype,
    runs: list[tuple[int, int]],
) -> None:
    rows = make_rows(runs, columns=5, padding=1)
    inputs = Inputs(rows, *shape, dtype)
    ids = chosen(rows, shape[1], topk, alike=alike)
    found = inputs.regions(ids)[rows.valid]
    with References():
        expected = inputs.clean().regions(ids)[rows.valid]
    assert error(found, expected) < tolerance(dtype)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("window", [0, 9, 64, 512])
@pytest.mark.parametrize("shape", SHAPES)
def test_window_rows_do_not_see_each_other(
    isa: str, shape: tuple[int, int, int], window: int, dtype: torch.dtype
) -> None:
    inputs = Inputs(ROWS, *shape, dtype)
    check_cuts(lambda part: inputs.window(window, part), len(ROWS))


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_region_rows_do_not_see_each_other(
    isa: str, shape: tuple[int, int, int], alike: bool, dtype: torch.dtype
) -> None:
    """Whether neighbours share their packed keys or not."""
    inputs = Inputs(ROWS, *shape, dtype)
    ids = chosen(ROWS, shape[1], 9, alike=alike)
    check_cuts(lambda part: inputs.regions(ids, part), len(ROWS))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_all_regions_are_every_position(isa: str, dtype: torch.dtype) -> None:
    """Sparse attention that chooses all gives the bits of dense attention (architecture 4.4)."""
    inputs = Inputs(ROWS, 8, 2, 48, dtype)
    everything = inputs.regions(chosen(ROWS, 2, 96, alike=True))
    assert torch.equal(everything, inputs.window(0))


def test_the_first_key_of_the_window_counts_and_the_one_before_does_not(isa: str) -> None:
    """Fault E7, for rows whose window begins anywhere in an octet."""
    rows = make_rows([(40, 9)], columns=1)
    inputs = Inputs(rows, 4, 2, 24, FP32)
    before = inputs.window(16)
    for row in range(9):
        oldest = int(rows.position[row]) - 15
        for place, changes in ((oldest, True), (oldest - 1, False)):
            value = inputs.pool[rows.table[0, 0], :, place // 8, 1, place % 8]
            kept = value.clone()
            value += 1
            assert torch.equal(inputs.window(16)[row], before[row]) is not changes
            value.copy_(kept)


def test_a_long_context_needs_no_more_rows_at_once(isa: str) -> None:
    """Logits of a piece have a budget; rows beyond it are cut, and the bits stay."""
    rows = make_rows([(9000, 5)], columns=141)
    inputs = Inputs(rows, 8, 1, 8, BF16)
    check_cuts(lambda part: inputs.window(0, part), 5)


@pytest.mark.usefixtures("kernels")
def test_bad_inputs_are_refused() -> None:
    rows = make_rows([(8, 2)], columns=1)
    inputs = Inputs(rows, 4, 2, 24, FP32)
    places = rows.slot, rows.position, rows.table
    with pytest.raises(RuntimeError, match="gate has shape"):
        window_attention(inputs.q, inputs.gate[:1], inputs.pool, *places, 4)
    with pytest.raises(RuntimeError, match=r"pool is .*BFloat16"):
        window_attention(inputs.q, inputs.gate, inputs.pool.bfloat16(), *places, 4)
    with pytest.raises(RuntimeError, match="pool has shape"):
        window_attention(inputs.q, inputs.gate, inputs.pool.transpose(3, 4), *places, 4)
    with pytest.raises(RuntimeError, match="slot is Int"):
        window_attention(inputs.q, inputs.gate, inputs.pool, rows.slot.int(), *places[1:], 4)
    ids = torch.zeros(2, 2, 1, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="regions of 16 tokens"):
        region_attention(inputs.q, inputs.gate, inputs.pool, *places, ids, 16)
