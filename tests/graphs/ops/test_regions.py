"""select_regions: kernel against reference, exact choice, and rows against each other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphs.formats import to_e4m3
from graphs.ops.library import References
from graphs.ops.regions import select_regions
from tests.graphs.ops.attention_cases import (
    BF16,
    FP32,
    Rows,
    check_cuts,
    few,
    make_rows,
    random,
    rotary,
)

HIDDEN, REGION = 40, 8


class Indexer:
    """Random weights, hidden states and summaries; `levels`: so few values that scores tie."""

    def __init__(
        self,
        rows: Rows,
        dtype: torch.dtype,
        *,
        heads: int = 4,
        groups: int = 2,
        width: int = 32,
        topk: int = 4,
        levels: bool = False,
    ) -> None:
        self.rows, self.topk, self.groups, self.heads = rows, topk, groups, heads
        self.h = random(len(rows), HIDDEN, seed=1).to(dtype)
        self.q = random(heads * width, HIDDEN, seed=2).to(BF16)
        self.w = random(heads, HIDDEN, seed=3)
        self.norm = random(width, seed=4) / 4
        self.rotary = rotary(rows, width // 4)
        shape = int(rows.table.max()) + 1, 64 // REGION, width
        values = random(*shape, seed=5)
        self.summary = to_e4m3(values.sign() if levels else values)

    def choose(self, part: slice = slice(None)) -> Tensor:
        rows = self.rows[part]
        return select_regions(
            *(self.h[part], self.q, self.w, self.norm, self.rotary[part].contiguous()),
            *(rows.slot, rows.position, rows.table, self.summary),
            *(self.heads, self.groups, self.topk, REGION, 1e-5),
        )


def differing(found: Tensor, expected: Tensor) -> float:
    """The share of chosen regions that the other did not choose."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    rows = zip(found.flatten(0, 1).tolist(), expected.flatten(0, 1).tolist(), strict=True)
    return sum(len(set(one) - set(other)) for one, other in rows) / found.numel()


RUNS = st.lists(st.tuples(st.integers(0, 1200), st.integers(1, 12)), min_size=1, max_size=3)


@few
@given(
    runs=RUNS,
    dtype=st.sampled_from([BF16, FP32]),
    shape=st.sampled_from([(4, 2, 32), (6, 3, 22), (16, 4, 64), (3, 1, 16)]),
    topk=st.sampled_from([1, 4, 16, 64]),
)
def test_matches_the_reference(
    isa: str,
    runs: list[tuple[int, int]],
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    topk: int,
) -> None:
    rows = make_rows(runs, columns=20, padding=2)
    heads, groups, width = shape
    indexer = Indexer(rows, dtype, heads=heads, groups=groups, width=width, topk=topk)
    found = indexer.choose()
    with References():
        expected = indexer.choose()
    # A q that falls on the other side of a rounding step moves a few scores by a little.
    assert differing(found, expected) < 0.03
    counts = (found >= 0).sum(-1)
    assert torch.equal(counts, (expected >= 0).sum(-1))
    for ids, count in zip(found.flatten(0, 1), counts.flatten(), strict=True):
        assert (ids[:count].diff() > 0).all(), "ids rise"
        assert (ids[count:] == -1).all(), "padding is last"


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("levels", [False, True])
def test_rows_do_not_see_each_other(isa: str, levels: bool, dtype: torch.dtype) -> None:
    rows = make_rows([(20, 9), (1000, 21), (33, 4)], columns=17, padding=1)
    indexer = Indexer(rows, dtype, levels=levels)
    check_cuts(indexer.choose, len(rows))


def scored(indexer: Indexer, wanted: Tensor) -> None:
    """Make region r of slot 0 score wanted[r] (whole numbers up to 7) in every row and head."""
    width = indexer.norm.shape[0]
    indexer.q, indexer.norm = torch.zeros_like(indexer.q), torch.zeros(width)
    # The first dim alone, past the rotated ones: after the norm every q is the same number.
    indexer.q.view(indexer.heads, width, HIDDEN)[:, -1] = 1
    indexer.w = torch.ones_like(indexer.w)
    indexer.h = torch.ones_like(indexer.h)
    values = torch.zeros(indexer.summary.shape)
    place = torch.arange(len(wanted))
    values[indexer.rows.table[0, place // 8], place % 8, -1] = wanted.float()
    indexer.summary = to_e4m3(values)


@pytest.mark.parametrize("regions", [70, 130, 2500])
def test_ties_go_to_the_lower_region(isa: str, regions: int) -> None:
    """More equal scores than are kept, above and below others, in every part of the list."""
    rows = make_rows([(regions * 8 + 3, 1)], columns=regions // 8 + 1)
    indexer = Indexer(rows, FP32, topk=50)
    for seed in range(3):
        wanted = torch.randint(
            0, 4 + seed, (regions,), generator=torch.Generator().manual_seed(seed)
        )
        scored(indexer, wanted)
        best = wanted.sort(descending=True, stable=True).indices[:50].sort().values
        assert torch.equal(indexer.choose()[0], best.expand(2, -1))


@pytest.mark.parametrize("order", ["rising", "falling", "flat", "early"])
def test_scores_in_order_are_selected_as_well(isa: str, order: str) -> None:
    """Rising scores pass the threshold every time, falling ones never; and the best ones, soon
    after the buffer was first full, are still there when it has been full again."""
    regions, topk = 4000, 40
    rows = make_rows([(regions * 8, 1)], columns=regions // 8 + 1)
    indexer = Indexer(rows, BF16, topk=topk)
    steps = torch.arange(regions) * 60 // regions  # codes of e4m3, which rise
    early = torch.where((steps > 18) & (steps < 20), 60, steps)
    codes = {"rising": steps, "falling": steps.flip(0), "flat": 0 * steps, "early": early}[order]
    wanted = (codes + 8).to(torch.uint8).view(torch.float8_e4m3fn).float()
    scored(indexer, wanted)
    best = wanted.sort(descending=True, stable=True).indices[:topk].sort().values
    assert torch.equal(indexer.choose()[0], best.expand(2, -1))


@pytest.mark.usefixtures("kernels")
def test_weights_and_summaries_are_not_read_when_all_regions_are_chosen() -> None:
    rows = make_rows([(0, 1), (31, 2), (38, 2)], columns=1)
    indexer = Indexer(rows, FP32)
    indexer.summary = to_e4m3(torch.full(indexer.summary.shape, torch.nan))
    indexer.q.fill_(torch.nan)
    ids = indexer.choose()[:, 0].tolist()
    assert ids == [[-1] * 4, [0, 1, 2, -1], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_scores_that_are_not_numbers_leave_the_choice_whole(isa: str) -> None:
    """A step that has gone wrong is reported by its logits; here it must only stay in bounds."""
    rows = make_rows([(900, 1)], columns=16)
    indexer = Indexer(rows, FP32)
    indexer.h.fill_(torch.nan)
    ids = indexer.choose()[0]
    assert (ids[:, 1:] > ids[:, :-1]).all()
    assert ids.min() >= 0
    assert ids.max() < 900 // 8
