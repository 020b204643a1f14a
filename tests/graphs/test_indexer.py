"""Region-sparse selection: ties, boundaries, the ring, and regions closed by rejected rows."""

import dataclasses

import pytest
import torch
from torch import Tensor

import graphs.state as state_module
from graphs.formats import to_e4m3
from graphs.layers.indexer import index_keys
from graphs.layers.linear import linears
from graphs.ops.regions import select
from graphs.ops.summaries import summarise
from graphs.rows import Rows
from graphs.state import RING, IndexerState
from tests.graphs.whole import (
    FP32,
    Model,
    fresh_state,
    golden,
    golden_model,
    layer_inputs,
    logits,
    residual,
    rotary_of,
    rows_at,
)

LAYER = 3


def update(model: Model, h_TH: Tensor, rows: Rows, state: IndexerState, table: Tensor) -> None:
    config, weights = model.config, model.weights.layers[LAYER].attention.indexer
    assert weights is not None
    assert config.sparse is not None
    here = rows, rotary_of(config, config.layers[LAYER], rows, h_TH.dtype), weights, state
    kz_TP = linears(h_TH, [weights.k, weights.z])
    index_keys(kz_TP, *here, table, config.sparse, config.rms_eps)


def random_rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))


def summaries(state: IndexerState, regions: int) -> Tensor:
    return state.summary[1:].flatten(0, 1)[:regions].float()


def built(chunks: list[int], h_TH: Tensor) -> Tensor:
    model, start = golden_model(), 0
    state = fresh_state(model)
    place = state.indexers[LAYER]
    assert place is not None
    for count in chunks:
        update(model, h_TH[start : start + count], rows_at(start, count), place, state.full_table)
        start += count
    return summaries(place, start // 8)


@pytest.mark.parametrize("chunks", [[1] * 80, [3, 4, 1, 17, 16, 39], [15, 2, 63], [8] * 10])
def test_summaries_do_not_depend_on_chunks(chunks: list[int]) -> None:
    h = random_rows(80)
    assert torch.equal(built(chunks, h), built([80], h))


def test_a_rejected_row_that_closed_a_region_is_overwritten() -> None:
    """Architecture 4.5: positions 5..8 verified, only 5 kept, then the true 6.. follow."""
    model, h, wrong = golden_model(), random_rows(16), random_rows(16, seed=9)
    state = fresh_state(model)
    place = state.indexers[LAYER]
    assert place is not None
    update(model, h[:5], rows_at(0, 5), place, state.full_table)
    window = torch.cat([h[5:6], wrong[6:9]])
    update(model, window, rows_at(5, 4), place, state.full_table)
    update(model, h[6:10], rows_at(6, 4), place, state.full_table)
    assert torch.equal(summaries(place, 1), built([10], h)[:1])
    closed_wrong = built([8], torch.cat([h[:6], wrong[6:8]]))
    assert not torch.equal(summaries(place, 1), closed_wrong)


def test_a_ring_of_seven_rows_would_be_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the ring's length: the test above must see a short one."""
    monkeypatch.setattr(state_module, "RING", 4)
    with pytest.raises(AssertionError):
        test_a_rejected_row_that_closed_a_region_is_overwritten()
    assert RING == 16


def test_padding_rows_touch_no_slot() -> None:
    """Fault D3: the scratch slot and block take what padding writes."""
    model = golden_model()
    state = fresh_state(model)
    place = state.indexers[LAYER]
    assert place is not None
    padding = Rows(
        slot=torch.full((3,), state.slots),
        position=torch.tensor([7, 7, 7]),
        valid=torch.zeros(3, dtype=torch.bool),
    )
    update(model, random_rows(3), padding, place, state.full_table)
    assert not place.summary[1:].float().any()
    assert not place.ring_k[: state.slots].any()


def test_one_summary_by_hand() -> None:
    k, z = torch.randn(1, 8, 5).bfloat16(), torch.randn(1, 8, 5).bfloat16()
    weight = torch.softmax(z.double(), dim=1)
    exact = (weight * k.double()).sum(1).bfloat16().float().to(torch.float8_e4m3fn)
    assert torch.equal(summarise(k, z).float(), exact.float())


def test_e4m3_saturates() -> None:
    assert to_e4m3(torch.tensor([500.0, -1e9, 448.0])).float().tolist() == [448, -448, 448]


def choose(scores: Tensor, position: int) -> list[list[int]]:
    """The choice by given scores [G, R] at one position: ids of each group."""
    ids = select(scores[None], torch.tensor([position // 8]), 4)
    return [row[row >= 0].tolist() for row in ids[0]]


def test_ties_go_to_the_lower_region_and_minus_zero_is_zero() -> None:
    scores = torch.zeros(2, 32)
    scores[0, :10] = torch.tensor([0.0, -0.0, 0.0, -0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    scores[1, :10] = torch.tensor([-1.0, -0.0, -1.0, 0.0, -0.0, 0.0, 0.0, -1.0, -1.0, 2.0])
    assert choose(scores, 80) == [[0, 1, 2, 6], [1, 3, 4, 9]]


@pytest.mark.parametrize(("position", "count"), [(0, 0), (7, 0), (8, 1), (39, 4), (40, 4), (90, 4)])
def test_only_strictly_past_regions_are_chosen(position: int, count: int) -> None:
    scores = torch.arange(64.0).view(2, 32)  # the latest regions score best, also the future ones
    first = position // 8 - count
    assert choose(scores, position) == [list(range(first, position // 8))] * 2


def test_sparse_equals_dense_up_to_the_boundary_and_not_after() -> None:
    """topk 4 regions of 8: every key is seen for p // 8 <= 4, that is p <= 39 (architecture
    4.4)."""
    model, ids = golden_model(), golden()["prompt_150"].long()
    dense = Model(config=dataclasses.replace(model.config, sparse=None), weights=model.weights)
    different = (residual(model, ids) - residual(dense, ids)).abs().amax(-1)
    assert different[:40].max() < 1e-4
    assert different[40:].max() > 1e-2


def test_ssmax_is_off_unless_asked_for() -> None:
    """The switch changes full layers only, and the golden data is without it (architecture 3.6)."""
    model, ids = golden_model(), golden()["prompt_60"].long()
    assert model.config.ssmax is False
    on = Model(config=dataclasses.replace(model.config, ssmax=True), weights=model.weights)
    plain = list(layer_inputs(model, ids, fresh_state(model)))
    scaled = list(layer_inputs(on, ids, fresh_state(on)))
    first_full = model.config.full_layers[0]
    assert torch.equal(plain[first_full], scaled[first_full])
    assert not torch.equal(plain[first_full + 1], scaled[first_full + 1])
    assert (logits(on, scaled[-1], FP32) - golden()["logits_60"]).abs().max() > 2e-2
