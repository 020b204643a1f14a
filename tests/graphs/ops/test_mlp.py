"""fourstep::dense_mlp: kernel against reference, the clamp, and its rows against each other."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphs.layers.activation import swiglu
from graphs.layers.linear import linear
from graphs.ops.mlp import dense_mlp, dense_mlp_reference
from tests.graphs.ops.dense_cases import BF16, FP32, ROWS, check_rows, error, random, tolerance


def weights(hidden: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    gate, up, down = (random(*shape, seed=i) / shape[1] ** 0.5 for i, shape in enumerate(shapes))
    return gate.to(dtype), up.to(dtype), down.to(dtype)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.integers(1, 20),
    hidden=st.integers(1, 100),
    width=st.integers(1, 100),
    limit=st.sampled_from([0.0, 0.1]),
    act=st.sampled_from([BF16, FP32]),
    stored=st.sampled_from([BF16, FP32]),
)
def test_matches_the_reference(
    isa: str,
    rows: int,
    hidden: int,
    width: int,
    limit: float,
    act: torch.dtype,
    stored: torch.dtype,
) -> None:
    inputs = (random(rows, hidden, seed=7).to(act), *weights(hidden, width, stored), limit)
    assert error(dense_mlp(*inputs), dense_mlp_reference(*inputs)) < tolerance(act)


@pytest.mark.parametrize("act", [BF16, FP32])
@pytest.mark.parametrize("shape", [(48, 24), (64, 96), (192, 50)])
def test_rows_do_not_see_each_other(isa: str, shape: tuple[int, int], act: torch.dtype) -> None:
    matrices = weights(*shape, BF16)
    check_rows(lambda h: dense_mlp(h, *matrices, 7.0), random(ROWS, shape[0]).to(act))


def test_activations_are_rounded_where_separate_products_round(isa: str) -> None:
    """The fused layer has the bits of linear, swiglu, linear but for silu's last place."""
    h, (gate, up, down) = random(8, 64).to(BF16), weights(64, 96, BF16)
    apart = linear(swiglu(linear(h, gate), linear(h, up), 7.0), down)
    assert (dense_mlp(h, gate, up, down, 7.0) == apart).float().mean() > 0.99


def test_clamp_comes_after_silu_and_only_from_above_for_the_gate(isa: str) -> None:
    """Fault B10 at activations well beyond the limit."""
    eye = torch.eye(3)
    h = torch.tensor([[20.0, -20.0, 6.0]])
    expected = torch.tensor([[7.0 * 7.0, h[0, 1].exp() * 20 * 7.0, 6 / (1 + (-h[0, 2]).exp()) * 6]])
    assert error(dense_mlp(h, eye, eye, eye, 7.0), expected) < 1e-6
    assert error(dense_mlp(h, eye, eye, eye, 0.0)[:, :1], torch.tensor([[400.0]])) < 1e-6


def test_a_nan_stays_visible(isa: str) -> None:
    eye, h = torch.eye(3), random(2, 3)
    poisoned = torch.tensor([[1.0, torch.nan, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for limit in (0.0, 7.0):
        for matrices in ((poisoned, eye, eye), (eye, poisoned, eye)):
            found = dense_mlp(h, *matrices, limit)
            assert found.isnan().all()
        assert (
            dense_mlp(h, eye, eye, poisoned, limit).isnan().tolist() == [[True, False, False]] * 2
        )


@pytest.mark.usefixtures("kernels")
def test_what_does_not_fit_is_refused() -> None:
    gate, up, down = weights(32, 48, FP32)
    with pytest.raises(RuntimeError, match="do not fit 16 columns"):
        dense_mlp(random(2, 16), gate, up, down, 0.0)
    with pytest.raises(RuntimeError, match="differ in width"):
        dense_mlp(random(2, 32), gate, up[:40], down, 0.0)
