"""update_summaries: kernel against reference, however rows are split into calls."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphs.ops.library import References
from graphs.ops.summaries import update_summaries
from graphs.state import RING
from tests.graphs.ops.attention_cases import BF16, FP32, Rows, few, make_rows, random, rotary

REGION = 8


class Indexer:
    """Random raw rows of some slots, and the state they are written to."""

    def __init__(self, rows: Rows, width: int, rotated: int) -> None:
        self.rows, self.width = rows, width
        self.kz = random(len(rows), 2 * width + 3, seed=2).to(BF16)[:, : 2 * width]
        self.vectors = 1 + random(width, seed=3), random(width, seed=4).to(BF16)
        self.rotary = rotary(rows, rotated)
        shape = rows.table.shape[0], RING, width
        self.ring_k, self.ring_z = (random(*shape, seed=i).to(BF16) for i in (5, 6))
        blocks = int(rows.table.max()) + 1
        self.summary = torch.zeros(blocks, 64 // REGION, width).to(torch.float8_e4m3fn)

    def write(self, part: slice = slice(None)) -> None:
        rows = self.rows[part]
        update_summaries(
            *(self.kz[part], *self.vectors, self.rotary[part].contiguous()),
            *(rows.slot, rows.position, rows.table, self.summary, self.ring_k, self.ring_z),
            *(REGION, 1e-5),
        )

    def state(self) -> list[Tensor]:
        """All that was written, without scratch."""
        return [self.summary[1:].float(), self.ring_k[:-1].float(), self.ring_z[:-1].float()]


# Rows of the last call of a slot, which begins anywhere in a region.
RUNS = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 40)), min_size=1, max_size=3)


@few
@given(runs=RUNS, shape=st.sampled_from([(32, 8), (48, 32), (21, 4), (256, 32)]))
def test_matches_the_reference(
    isa: str, runs: list[tuple[int, int]], shape: tuple[int, int]
) -> None:
    rows = make_rows(runs, columns=3, padding=2)
    kernel, reference = Indexer(rows, *shape), Indexer(rows, *shape)
    kernel.write()
    with References():
        reference.write()
    summary, ring_k, ring_z = zip(kernel.state(), reference.state(), strict=True)
    assert torch.equal(*ring_z)
    # One rounding step where a sum in another order falls on the other side of a tie.
    assert ((ring_k[0] - ring_k[1]).abs() <= ring_k[1].abs() / 128 + 2**-9).all()
    assert (ring_k[0] != ring_k[1]).float().mean() < 0.01
    assert ((summary[0] - summary[1]).abs() <= summary[1].abs() / 8 + 2**-9).all()
    assert (summary[0] != summary[1]).float().mean() < 0.01


@pytest.mark.parametrize("calls", [[1] * 61, [4] * 15 + [1], [3, 5, 16, 17, 20], [61]])
def test_how_rows_are_split_is_not_seen(isa: str, calls: list[int]) -> None:
    """In chunks shorter and longer than the ring, two slots beside each other."""
    rows = make_rows([(5, 61), (0, 61)], columns=2)
    whole, split = Indexer(rows, 48, 16), Indexer(rows, 48, 16)
    whole.write()
    at = 0
    for count in calls:
        for slot in (0, 61):
            split.write(slice(slot + at, slot + at + count))
        at += count
    for one, other in zip(whole.state(), split.state(), strict=True):
        assert torch.equal(one, other)


def test_a_summary_by_hand(isa: str) -> None:
    """The mean of the stored keys, weighted by softmax of z over the tokens, dim by dim."""
    rows = make_rows([(0, 8)], columns=1)
    indexer = Indexer(rows, 32, 8)
    indexer.write()
    weight = torch.softmax(indexer.ring_z[0, :8].double(), dim=0)
    exact = (weight * indexer.ring_k[0, :8].double()).sum(0)
    found = indexer.summary[rows.table[0, 0], 0].double()
    assert ((found - exact).abs() <= exact.abs() / 15 + 2**-10).all()


def test_numbers_too_large_for_e4m3_saturate_and_small_ones_are_rounded(isa: str) -> None:
    """bf16 numbers from 2^-10 to 2^10, half of them ties, against the reference's cast."""
    rows, width = make_rows([(0, 8)], columns=1), 320
    kernel, reference = Indexer(rows, width, 2), Indexer(rows, width, 2)
    for indexer in (kernel, reference):
        # Zero weight and the numbers as bias: every key of the region is exactly the bias.
        bias = (117 << 7) + 8 * torch.arange(width, dtype=torch.int16)
        signs = 1 - torch.arange(width) // 2 % 2 * 2
        indexer.vectors = torch.zeros(width), bias.view(BF16) * signs
        indexer.rotary = torch.tensor([1.0, 0.0]).repeat(8, 1)
    kernel.write()
    with References():
        reference.write()
    assert torch.equal(kernel.state()[0], reference.state()[0])
    assert kernel.state()[0].max() == 448


def test_padding_rows_write_nothing(isa: str) -> None:
    """Fault D3, at positions that would close a region."""
    rows = make_rows([(0, 1)], columns=1, padding=9)
    rows.position[1:] = torch.arange(9)
    indexer = Indexer(rows, 32, 8)
    before = indexer.ring_k.clone(), indexer.ring_z.clone()
    indexer.write(slice(1, None))
    assert not indexer.summary.float().any()
    assert torch.equal(indexer.ring_k, before[0])
    assert torch.equal(indexer.ring_z, before[1])


@pytest.mark.usefixtures("kernels")
def test_bad_inputs_are_refused() -> None:
    indexer = Indexer(make_rows([(0, 4)], columns=1), 32, 8)
    indexer.kz = indexer.kz.to(FP32)
    with pytest.raises(RuntimeError, match="kz is Float"):
        indexer.write()
