"""fourstep::route: the choice of experts, its ties, and its rows against each other."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphs.ops.route import route, route_reference
from tests.graphs.ops.dense_cases import BF16, FP32, ROWS, check_rows, random


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.integers(1, 20),
    width=st.integers(1, 100),
    experts=st.integers(1, 60),
    act=st.sampled_from([BF16, FP32]),
    data=st.data(),
)
def test_matches_the_reference(
    isa: str, rows: int, width: int, experts: int, act: torch.dtype, data: st.DataObject
) -> None:
    topk = data.draw(st.integers(1, experts))
    h, router = random(rows, width).to(act), random(experts, width, seed=1) / width**0.5
    # Biases far apart, so that the last bits of a sum do not decide.
    bias = random(experts, seed=2).argsort().float()
    valid = random(rows, seed=3) > -1
    ids, weights = route(h, router, bias, valid, topk, 3.0)
    expected_ids, expected = route_reference(h, router, bias, valid, topk, 3.0)
    assert torch.equal(ids, expected_ids)
    assert (weights - expected).abs().max() < 2e-6


@pytest.mark.parametrize("act", [BF16, FP32])
def test_rows_do_not_see_each_other(isa: str, act: torch.dtype) -> None:
    router, bias = random(37, 100, seed=1), random(37, seed=2) * 0.1
    valid = random(ROWS, seed=3) > -1
    h = random(ROWS, 100).to(act)
    check_rows(lambda h, valid: route(h, router, bias, valid, 5, 3.0)[1], h, valid)
    check_rows(lambda h, valid: route(h, router, bias, valid, 5, 3.0)[0], h, valid)


def test_ties_go_to_the_lower_expert_and_padding_chooses_none(isa: str) -> None:
    valid = torch.tensor([True, False, True])
    bias = torch.tensor([0.0, 1.0, 0.0, 1.0, -torch.inf, 0.0])
    ids, weights = route(random(3, 8), torch.zeros(6, 8), bias, valid, 4, 2.0)
    assert ids.tolist() == [[1, 3, 0, 2], [-1] * 4, [1, 3, 0, 2]]
    assert weights.tolist() == [[0.5] * 4, [0.0] * 4, [0.5] * 4]
    ids, _ = route(random(3, 8), torch.zeros(6, 8), bias, valid, 6, 2.0)
    assert ids[0].tolist() == [1, 3, 0, 2, 5, 4]


def test_the_bias_chooses_and_does_not_weigh(isa: str) -> None:
    h, router = random(10, 8), random(6, 8, seed=1)
    bias = torch.tensor([0.0, 5.0, 0.0, 0.0, 5.0, 0.0])
    ids, weights = route(h, router, bias, torch.ones(10, dtype=torch.bool), 3, 3.0)
    assert all({1, 4} <= set(row) for row in ids.tolist())
    p = torch.sigmoid(h @ router.T).gather(1, ids)
    assert (weights - 3 * p / p.sum(-1, keepdim=True)).abs().max() < 1e-5


def test_a_nan_stays_visible(isa: str) -> None:
    """An expert whose score is none is chosen before all others, so that its weight says so."""
    h, router = random(2, 8), random(6, 8, seed=1)
    valid = torch.ones(2, dtype=torch.bool)
    for poisoned in range(6):
        broken = router.clone()
        broken[poisoned, 3] = torch.nan
        ids, weights = route(h, broken, torch.zeros(6), valid, 3, 3.0)
        assert ids[:, 0].tolist() == [poisoned] * 2
        assert weights.isnan().all()


@pytest.mark.usefixtures("kernels")
def test_what_does_not_fit_is_refused() -> None:
    valid = torch.ones(2, dtype=torch.bool)
    for width, topk, match in ((8, 7, "7 of 6 experts"), (9, 3, "8 columns")):
        with pytest.raises(RuntimeError, match=match):
            route(random(2, width), random(6, 8), torch.zeros(6), valid, topk, 1.0)
