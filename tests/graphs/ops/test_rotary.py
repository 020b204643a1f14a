"""rotary_table and rope_write: kernel against reference, and rows against each other."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphs.layers.rope import inverse_frequencies
from graphs.ops.library import References
from graphs.ops.rotary import rope_write, rotary_table
from tests.graphs.ops.attention_cases import (
    BF16,
    FP32,
    Rows,
    check_cuts,
    error,
    every_head,
    few,
    make_rows,
    pool_of,
    random,
    rotary,
    strided,
    tolerance,
)


@pytest.mark.parametrize("rounding", [BF16, FP32])
def test_tables_to_the_last_position(isa: str, rounding: torch.dtype) -> None:
    """Of the float32 angle, which is the model's, exact to the rounding of the result."""
    position = torch.tensor([0, 1, 777, 100_003, 2**20 - 1])
    inv = inverse_frequencies(1e7, 64, None)
    found = rotary_table(position, inv, rounding)
    angle = (position.float()[:, None] * inv).double()
    assert torch.equal(found, torch.cat([angle.cos(), angle.sin()], dim=1).float().to(rounding))
    assert found[-1, 0] == pytest.approx(math.cos(2**20 - 1), abs=2**-7)


@pytest.mark.parametrize("width", [2, 30, 64, 96])
def test_table_rows_do_not_see_each_other(isa: str, width: int) -> None:
    position = torch.arange(64) * 1009
    inv = inverse_frequencies(1e4, width, None)
    check_cuts(lambda part: rotary_table(position[part], inv, FP32), 64)


class Inputs:
    """Random projections for some rows, and a pool to write."""

    def __init__(self, rows: Rows, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        self.heads, self.groups, self.width, rotated = shape
        self.rows = rows
        columns = (self.heads + 2 * self.groups) * self.width
        self.qkv = strided(random(len(rows), columns, seed=2).to(dtype))
        self.norms = random(self.width, seed=3), random(self.width, seed=4)
        self.rotary = rotary(rows, rotated, dtype)
        self.pool = pool_of(rows, self.groups, self.width, dtype)

    def write(self, part: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """q, and the pool after the call; the pool of the inputs stays."""
        pool = self.pool.clone()
        rows = self.rows[part]
        places = rows.slot, rows.position, rows.table
        q = rope_write(
            *(self.qkv[part], *self.norms, self.rotary[part].contiguous()),
            *(*places, pool, self.heads, 1e-5),
        )
        return q, pool

    def stored(self, part: slice = slice(None)) -> Tensor:
        """q, k and v of each row, side by side."""
        q, pool = self.write(part)
        rows = self.rows[part]
        place = rows.table[rows.slot, rows.position // 64], rows.position % 64
        return torch.cat([q, *every_head(pool, place)], dim=1)


SHAPES = [(8, 2, 48, 16), (3, 3, 33, 32), (4, 1, 64, 64), (5, 1, 24, 8)]


@few
@given(
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from([BF16, FP32]),
    runs=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 9)), min_size=1, max_size=3),
)
def test_rope_write_matches_the_reference(
    isa: str, shape: tuple[int, int, int, int], dtype: torch.dtype, runs: list[tuple[int, int]]
) -> None:
    rows = make_rows(runs, columns=5, padding=2)
    inputs = Inputs(rows, shape, dtype)
    with References():
        expected = inputs.write()
    kept = rows.valid, slice(1, None)  # without padding rows and scratch block
    for found, wanted, valid in zip(inputs.write(), expected, kept, strict=True):
        assert torch.equal(found[valid].isnan(), wanted[valid].isnan())
        assert error(found[valid].nan_to_num(0), wanted[valid].nan_to_num(0)) < tolerance(dtype)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_do_not_see_each_other(
    isa: str, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    rows = make_rows([(50, 30), (700, 4), (0, 7)], columns=12)
    check_cuts(Inputs(rows, shape, dtype).stored, len(rows))


@pytest.mark.usefixtures("kernels")
def test_values_are_stored_as_they_come_and_the_rest_of_a_head_is_not_rotated() -> None:
    rows = make_rows([(61, 8)], columns=2)
    inputs = Inputs(rows, (4, 2, 48, 16), BF16)
    head = inputs.qkv.unflatten(1, (-1, 48))
    place = rows.table[0, rows.position // 64], rows.position % 64
    assert torch.equal(every_head(inputs.write()[1], place)[1], head[:, 6:])
    before = inputs.write()[0]
    inputs.rotary = rotary(make_rows([(0, 8)], columns=2), 16)
    after = inputs.write()[0]
    assert torch.equal(after[..., 16:], before[..., 16:])
    assert not torch.equal(after[..., :16], before[..., :16])


def test_padding_rows_write_nothing(isa: str) -> None:
    """Fault D3."""
    rows = make_rows([(3, 2)], columns=1, padding=3)
    _, after = Inputs(rows, (4, 2, 24, 8), FP32).write(slice(2, None))
    assert torch.equal(after.nan_to_num(7), pool_of(rows, 2, 24, FP32).nan_to_num(7))
