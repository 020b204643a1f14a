"""fourstep::rms_norm: kernel against reference, and its rows against each other."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphs.ops.norm import rms_norm, rms_norm_reference
from tests.graphs.ops.dense_cases import BF16, FP32, ROWS, check_rows, error, random

kinds = st.sampled_from([BF16, FP32])


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.integers(1, 9), width=st.integers(1, 300), x=kinds, weight=kinds, dtype=kinds)
def test_matches_the_reference(
    isa: str, rows: int, width: int, x: torch.dtype, weight: torch.dtype, dtype: torch.dtype
) -> None:
    inputs = (random(rows, width).to(x), random(width, seed=1).to(weight), 1e-5)
    found = rms_norm(*inputs, dtype)
    assert found.dtype == dtype
    assert error(found, rms_norm_reference(*inputs, FP32)) < (8e-3 if dtype == BF16 else 2e-6)


@pytest.mark.parametrize("width", [24, 192, 4096])
def test_rows_do_not_see_each_other(isa: str, width: int) -> None:
    weight = random(width, seed=1)
    check_rows(lambda x: rms_norm(x, weight, 1e-5, BF16), random(ROWS, width))


def test_rows_with_a_stride_and_more_dims(isa: str) -> None:
    x, weight = random(6, 100), random(24, seed=1)
    heads = x[:, :72].unflatten(1, (3, 24))
    whole = rms_norm(heads.contiguous(), weight, 1e-5, FP32)
    assert torch.equal(rms_norm(heads, weight, 1e-5, FP32), whole)
    assert torch.equal(rms_norm(x[:, :24], weight, 1e-5, FP32), whole[:, 0])
    assert rms_norm(x[:0, :24], weight, 1e-5, FP32).shape == (0, 24)


@pytest.mark.usefixtures("kernels")
def test_a_weight_of_another_width_is_refused() -> None:
    with pytest.raises(RuntimeError, match="rms_norm: weight"):
        rms_norm(random(2, 32), random(16), 1e-5, FP32)
