"""fourstep::linear: kernel against reference in every format, and its rows against each other."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphs.layers.linear import linear, linears
from graphs.ops import linear as operator
from graphs.ops.linear import linear_reference
from graphs.ops.matrices import pack, unpack
from tests.graphs.ops.dense_cases import (
    BF16,
    FORMATS,
    FP32,
    ROWS,
    check_rows,
    error,
    random,
    stack,
    tolerance,
)

few = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("act", [BF16, FP32])
@pytest.mark.parametrize("kind", FORMATS)
@few
@given(data=st.data())
def test_matches_the_reference(isa: str, data: st.DataObject, kind: str, act: torch.dtype) -> None:
    step = 16 if kind == "nvfp4" else 1
    width = step * data.draw(st.integers(1, 400 // step))
    out, rows = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 40))
    tensors, spec = pack([stack(kind, 1, out, width)])
    x = random(rows, width).to(act)
    # The kernel does not round an nvfp4 weight to bf16, nor does the reference when x is f32.
    wide = linear_reference(x.float() if kind == "nvfp4" else x, tensors, spec, FP32)
    for dtype in (BF16, FP32):
        found = operator.linear(x, tensors, spec, dtype)
        assert found.dtype == dtype
        assert error(found, wide) < (3e-6 if dtype == FP32 else 8e-3)


@pytest.mark.parametrize("act", [BF16, FP32])
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("width", [16, 48, 208, 400, 3008])
def test_rows_do_not_see_each_other(isa: str, width: int, kind: str, act: torch.dtype) -> None:
    """Widths of one step, of whole steps and a rest, and of more steps than stay in the cache."""
    tensors, spec = pack([stack(kind, 1, 37, width)])
    check_rows(lambda x: operator.linear(x, tensors, spec, act), random(ROWS, width).to(act))


@pytest.mark.parametrize("act", [BF16, FP32])
def test_several_matrices_are_those_alone_side_by_side(isa: str, act: torch.dtype) -> None:
    x = random(9, 96).to(act)
    weights = [random(out, 96, seed=out).to(BF16) for out in (70, 1, 33)]
    assert torch.equal(linears(x, weights), torch.cat([linear(x, w) for w in weights], dim=-1))
    mixed = [stack(kind, 1, 20, 96) for kind in FORMATS]
    tensors, spec = pack(mixed)
    found = operator.linear(x, tensors, spec, act)
    assert error(found, linear_reference(x, tensors, spec, act)) < tolerance(act, *FORMATS)


def test_any_rank_and_rows_with_a_stride(isa: str) -> None:
    x, w = random(6, 200).to(BF16), random(10, 96, seed=2).to(BF16)
    whole = linear(x[:, :96].contiguous(), w)
    assert torch.equal(linear(x[:, :96], w), whole)
    assert torch.equal(linear(x[:, :96].unflatten(0, (2, 3)), w), whole.unflatten(0, (2, 3)))
    assert linear(x[:0, :96], w).shape == (0, 10)


def test_weights_at_any_four_byte_boundary(isa: str) -> None:
    """A mapped checkpoint aligns nothing."""
    w, x = random(10, 64, seed=2).to(BF16), random(5, 64).to(BF16)
    raw = torch.zeros(w.nbytes + 64, dtype=torch.uint8)
    for offset in (0, 4, 12, 60):
        moved = raw[offset : offset + w.nbytes].view(BF16).view(w.shape)
        moved.copy_(w)
        assert torch.equal(linear(x, moved), linear(x, w))


def test_pack_and_unpack() -> None:
    matrices = [stack(kind, 3, 4, 32) for kind in FORMATS]
    tensors, spec = pack(matrices)
    assert spec == "bf16,f32,fp8:16x32,fp8:5x7,nvfp4"
    for one, other in zip(matrices, unpack(tensors, spec), strict=True):
        assert type(one) is type(other)
        assert torch.equal(one.dequantise(2), other.dequantise(2))


def test_results_are_rounded_to_nearest_even(isa: str) -> None:
    """Halfway cases, the largest number, a NaN."""
    bits = torch.randint(0x3000, 0x4F00, (64, 48), dtype=torch.int32) << 16
    tails = torch.tensor([0x8000, 0x8001, 0x7FFF], dtype=torch.int32)
    x = (bits | tails.repeat(16)).view(FP32)
    x[3] = torch.finfo(FP32).max
    found = operator.linear(x, [torch.eye(48)], "f32", BF16)
    assert torch.equal(found[:3], x[:3].to(BF16))
    assert torch.equal(found[4:], x[4:].to(BF16))
    assert found[3].isinf().all()
    full = torch.full((1, 48), 0x7FFFFFFF, dtype=torch.int32).view(FP32)
    assert operator.linear(full, [torch.eye(48)], "f32", BF16).isnan().all()


@pytest.mark.parametrize("act", [BF16, FP32])
@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_poison_stays_visible(isa: str, kind: str, act: torch.dtype) -> None:
    """A NaN code of a weight or a scale reaches the result."""
    tensors, spec = pack([stack(kind, 1, 3, 32)])
    tensors[1 if kind == "nvfp4" else 0].view(torch.uint8)[0, 1, 0] = 0x7F
    found = operator.linear(torch.ones(1, 32, dtype=act), tensors, spec, FP32)
    assert found.isnan().tolist() == [[False, True, False]]


@pytest.mark.parametrize("act", [BF16, FP32])
def test_negative_block_scales(isa: str, act: torch.dtype) -> None:
    """No quantiser writes them, e4m3 has them; only rows 2 and 5 are affected."""
    tensors, spec = pack([stack("nvfp4", 1, 9, 400)])
    plain = operator.linear(random(7, 400).to(act), tensors, spec, FP32)
    tensors[1].view(torch.uint8)[0, [2, 5], ::3] ^= 0x80
    x = random(7, 400).to(act)
    found = operator.linear(x, tensors, spec, FP32)
    assert error(found, linear_reference(x, tensors, spec, FP32)) < tolerance(act, "nvfp4")
    assert torch.equal(found[:, [0, 1, 3, 4, 6, 7, 8]], plain[:, [0, 1, 3, 4, 6, 7, 8]])
    assert not torch.equal(found, plain)


def test_a_row_of_blocks_reads_its_own_scales(isa: str) -> None:
    """Also where a row's last step goes past its last block."""
    tensors, spec = pack([stack("fp8-odd", 1, 10, 40)])
    tensors[1][0, 1] = torch.inf
    found = operator.linear(random(1, 40), tensors, spec, FP32)
    assert found.isfinite().tolist() == [[True] * 5 + [False] * 5]


@pytest.mark.usefixtures("kernels")
def test_what_does_not_fit_is_refused() -> None:
    x, w = random(2, 32), random(4, 48)
    with pytest.raises(RuntimeError, match="48 columns"):
        linear(x, w)
    with pytest.raises(RuntimeError, match="not contiguous"):
        linear(x, random(32, 4).T)
    with pytest.raises(RuntimeError, match="bf16 or f32"):
        operator.linear(x.double(), [random(4, 32)], "f32", FP32)
    with pytest.raises(RuntimeError, match="more than 1 tensors"):
        operator.linear(x, [random(4, 32)], "nvfp4", FP32)
    scale = random(2, 2)
    with pytest.raises(RuntimeError, match="scale_inv has shape"):
        operator.linear(x, [torch.zeros(4, 32).to(torch.float8_e4m3fn), scale], "fp8:4x32", FP32)
