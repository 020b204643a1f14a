"""fourstep::routed_experts: every format, mixed ones, padding, and its rows against each other."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphs.ops import routed_experts as module
from graphs.ops.matrices import pack
from tests.graphs.ops.dense_cases import (
    BF16,
    FP32,
    ROWS,
    check_rows,
    error,
    random,
    stack,
    tolerance,
)

operator, reference = torch.ops.fourstep.routed_experts, module.routed_experts_reference
KINDS = ("bf16", "fp8", "fp8-odd", "nvfp4")
EXPERTS = 9


def weights(
    kinds: tuple[str, ...], hidden: int, width: int, experts: int = EXPERTS
) -> tuple[list[Tensor], str]:
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    pairs = enumerate(zip(kinds, shapes, strict=True))
    return pack([stack(kind, experts, *shape, seed=i) for i, (kind, shape) in pairs])


def choices(rows: int, topk: int, experts: int = EXPERTS) -> tuple[Tensor, Tensor]:
    ids = random(rows, experts, seed=3).argsort(-1)[:, :topk].contiguous()
    return ids, random(rows, topk, seed=4).softmax(-1)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.integers(1, 40),
    blocks=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    kinds=st.tuples(*[st.sampled_from(KINDS)] * 3),
    topk=st.integers(1, 4),
    limit=st.sampled_from([0.0, 0.1]),
    act=st.sampled_from([BF16, FP32]),
)
def test_matches_the_reference(
    isa: str,
    rows: int,
    blocks: tuple[int, int],
    kinds: tuple[str, ...],
    topk: int,
    limit: float,
    act: torch.dtype,
) -> None:
    hidden, width = (16 * count for count in blocks)
    inputs = (random(rows, hidden, seed=7).to(act), *choices(rows, topk))
    matrices = weights(kinds, hidden, width)
    found, expected = (run(*inputs, *matrices, limit) for run in (operator, reference))
    assert error(found, expected) < tolerance(act, *kinds)


@pytest.mark.parametrize("act", [BF16, FP32])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_see_each_other(isa: str, kind: str, act: torch.dtype) -> None:
    """With four experts and three choices most experts serve many rows, in a slice of one just
    one."""
    matrices = weights((kind,) * 3, 192, 48, experts=4)
    run = lambda h, ids, shares: operator(h, ids, shares, *matrices, 7.0)  # noqa: E731
    check_rows(run, random(ROWS, 192).to(act), *choices(ROWS, 3, experts=4))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_gets_zeros_and_a_missing_choice_nothing(isa: str, kind: str) -> None:
    matrices, h = weights((kind,) * 3, 64, 32), random(5, 64)
    ids, shares = choices(5, 3)
    ids[1] = -1
    ids[3, 1] = -1
    found = operator(h, ids, shares, *matrices, 0.0)
    assert not found[1].any()
    expected = reference(h, ids, shares, *matrices, 0.0)
    assert error(found, expected) < tolerance(FP32)
    none = operator(h, torch.full_like(ids, -1), shares, *matrices, 0.0)
    assert not none.any()


def test_gate_and_up_keep_their_own_second_scale(isa: str) -> None:
    """Fault B2: one scale for both is wrong by the ratio of the two."""
    (gate, *rest), spec = weights(("nvfp4",) * 3, 64, 32)
    tensors = [gate, *rest]
    tensors[5] = tensors[5] * 7
    h, (ids, shares) = random(4, 64), choices(4, 2)
    found = operator(h, ids, shares, tensors, spec, 0.0)
    assert error(found, reference(h, ids, shares, tensors, spec, 0.0)) < tolerance(FP32)


@pytest.mark.usefixtures("kernels")
def test_what_does_not_fit_is_refused() -> None:
    matrices, h = weights(("bf16",) * 3, 32, 16), random(2, 32)
    ids, shares = choices(2, 2)
    for wrong in (EXPERTS, -2):
        with pytest.raises(RuntimeError, match=f"expert {wrong} of {EXPERTS}"):
            operator(h, torch.full_like(ids, wrong), shares, *matrices, 0.0)
    with pytest.raises(RuntimeError, match="do not fit 48 columns"):
        operator(random(2, 48), ids, shares, *matrices, 0.0)
    tensors, spec = matrices
    with pytest.raises(RuntimeError, match="numbers of experts"):
        operator(h, ids, shares, [tensors[0][:4], *tensors[1:]], spec, 0.0)
