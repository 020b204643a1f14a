"""Weight formats: exact decode against golden matrices and a per-element reference; quantisers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from graphs.formats import Bf16Experts, ExpertMatrix, Fp8Experts, Nvfp4Experts, encode_e2m1
from tests.graphs.variants import GOLDEN, read_all

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
seeds = st.integers(0, 2**31)


def random_stack(seed: int, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def decode_slowly(stack: Nvfp4Experts, expert: int) -> Tensor:
    """Architecture 2.5 read literally, one element at a time."""
    rows, columns = stack.out_dim, stack.in_dim
    scales = stack.scale[expert].float() * stack.scale_2[expert]
    out = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            byte = int(stack.weight[expert, row, column // 2])
            code = byte >> 4 if column % 2 else byte & 15
            value = MAGNITUDES[code & 7] * (-1 if code & 8 else 1)
            out[row, column] = torch.tensor(value) * scales[row, column // 16]
    return out


def golden_stack(kind: str, layer: int, projection: str) -> ExpertMatrix:
    tensors = read_all(GOLDEN / ("fp8" if kind == "fp8" else "nvfp4-packed"))
    stem = f"model.layers.{layer}.moe.{projection}_proj"
    weight = tensors[f"{stem}.weight"]
    if kind == "fp8":
        scale_inv = tensors[f"{stem}.weight_scale_inv"]
        return Fp8Experts(weight=weight, scale_inv=scale_inv, block=(16, 16))
    scale, scale_2 = tensors[f"{stem}.weight_scale"], tensors[f"{stem}.weight_scale_2"]
    return Nvfp4Experts(weight=weight, scale=scale, scale_2=scale_2)


@pytest.mark.parametrize("projection", ["gate", "up", "down"])
@pytest.mark.parametrize(("layer", "expert"), [(1, 0), (5, 3)])
@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_decode_equals_golden_matrices_exactly(
    kind: str, layer: int, expert: int, projection: str
) -> None:
    golden = load_file(GOLDEN / "golden.safetensors")
    expected = golden[f"{kind}_dequant_L{layer}_E{expert}_{projection}"]
    assert torch.equal(golden_stack(kind, layer, projection).dequantise(expert), expected)


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_nvfp4_decode_equals_per_element_reference(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.randint(0, 0x7F, (2, 3, 2), dtype=torch.uint8, generator=generator)
    stack = Nvfp4Experts(
        weight=torch.randint(0, 256, (2, 3, 16), dtype=torch.uint8, generator=generator),
        scale=scale.view(torch.float8_e4m3fn),
        scale_2=torch.rand(2, generator=generator) * 1e-3,
    )
    for expert in range(2):
        assert torch.equal(stack.dequantise(expert), decode_slowly(stack, expert))


def test_nvfp4_decodes_every_code_in_both_nibbles() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    weight = (codes | ((15 - codes) << 4)).view(1, 1, 16)
    ones = torch.ones(1, 1, 2).to(torch.float8_e4m3fn)
    decoded = Nvfp4Experts(weight=weight, scale=ones, scale_2=torch.ones(1)).dequantise(0)
    values = torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)])
    assert torch.equal(decoded[0, 0::2], values)
    assert torch.equal(decoded[0, 1::2], values.flip(0))


def test_nvfp4_multiplies_the_two_scales_first() -> None:
    stack = Nvfp4Experts.quantise(random_stack(0, (1, 64, 64)))
    values = Nvfp4Experts(
        weight=stack.weight,
        scale=torch.ones_like(stack.scale.float()).to(torch.float8_e4m3fn),
        scale_2=torch.ones(1),
    ).dequantise(0)
    scale = stack.scale[0].float().repeat_interleave(16, dim=1)
    scales_first = values * (scale * stack.scale_2[0])
    other_order = (values * scale) * stack.scale_2[0]
    assert not torch.equal(scales_first, other_order)
    assert torch.equal(stack.dequantise(0), scales_first)


def test_nvfp4_decode_leaves_the_stack_and_its_tables_alone() -> None:
    stack = Nvfp4Experts.quantise(random_stack(1, (2, 16, 32)))
    first = stack.dequantise(1)
    kept = first.clone()
    first.zero_()
    assert torch.equal(stack.dequantise(1), kept)


def test_nvfp4_scale_of_one_expert_does_not_reach_another() -> None:
    stack = Nvfp4Experts.quantise(random_stack(2, (2, 16, 32)))
    poisoned = torch.stack([stack.scale_2[0], torch.tensor(math.nan)])
    changed = Nvfp4Experts(weight=stack.weight, scale=stack.scale, scale_2=poisoned)
    assert torch.equal(changed.dequantise(0), stack.dequantise(0))
    assert changed.dequantise(1).isnan().any()


@settings(max_examples=30, deadline=None)
@given(seed=seeds, size=st.sampled_from([1e-6, 1e-2, 1.0, 300.0]))
def test_nvfp4_quantise_error_is_within_one_step(seed: int, size: float) -> None:
    w_EOI = random_stack(seed, (2, 8, 48), size)
    stack = Nvfp4Experts.quantise(w_EOI)
    for expert in range(2):
        scale = stack.scale[expert].float().repeat_interleave(16, dim=1)
        # One step of the grid's coarsest part; block scales under e4m3's normal range lose more.
        bound = (scale + 6 * 2**-10) * stack.scale_2[expert] * (1 + 1e-5)
        assert ((stack.dequantise(expert) - w_EOI[expert]).abs() <= bound).all()


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_nvfp4_quantise_repeats_what_it_wrote(seed: int) -> None:
    """A matrix already on the grid keeps its codes (block scales are in e4m3's normal range)."""
    once = Nvfp4Experts.quantise(random_stack(seed, (2, 8, 48)))
    values = torch.stack([once.dequantise(expert) for expert in range(2)])
    again = Nvfp4Experts.quantise(values)
    repeated = torch.stack([again.dequantise(expert) for expert in range(2)])
    torch.testing.assert_close(repeated, values, rtol=2**-22, atol=0)


def test_nvfp4_quantise_of_zeros_is_zeros() -> None:
    stack = Nvfp4Experts.quantise(torch.zeros(1, 4, 32))
    assert torch.equal(stack.dequantise(0), torch.zeros(4, 32))


def test_nvfp4_quantise_refuses_a_cut_block() -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        Nvfp4Experts.quantise(torch.zeros(1, 4, 40))


def test_encode_rounds_to_nearest_and_ties_to_even() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    even = torch.tensor([0, 2, 2, 4, 4, 6, 6], dtype=torch.uint8)
    assert torch.equal(encode_e2m1(ties), even)
    assert torch.equal(encode_e2m1(-ties), even | 8)
    above = torch.nextafter(ties, torch.tensor(9.0))
    assert torch.equal(encode_e2m1(above), torch.arange(1, 8, dtype=torch.uint8))
    below = torch.nextafter(ties, torch.tensor(0.0))
    assert torch.equal(encode_e2m1(below), torch.arange(7, dtype=torch.uint8))
    assert encode_e2m1(torch.tensor([100.0])).item() == 7


@settings(max_examples=30, deadline=None)
@given(seed=seeds, rows=st.integers(1, 20), columns=st.integers(1, 20))
def test_fp8_blocks_may_be_ragged(seed: int, rows: int, columns: int) -> None:
    w_EOI = random_stack(seed, (2, rows, columns))
    stack = Fp8Experts.quantise(w_EOI, (8, 6))
    assert stack.scale_inv.shape == (2, -(-rows // 8), -(-columns // 6))
    for expert in range(2):
        decoded = stack.dequantise(expert)
        assert decoded.shape == (rows, columns)
        for row in range(rows):
            for column in range(0, columns, 5):
                scale = stack.scale_inv[expert, row // 8, column // 6]
                assert decoded[row, column] == stack.weight[expert, row, column].float() * scale
        # e4m3 keeps 3 mantissa bits; what falls under its normal range loses at most half a step.
        assert ((decoded - w_EOI[expert]).abs() <= w_EOI[expert].abs() / 16 + 1e-4).all()


def test_bf16_decode_is_the_stored_values() -> None:
    weight = random_stack(3, (2, 5, 7)).bfloat16()
    assert torch.equal(Bf16Experts(weight=weight).dequantise(1), weight[1].float())


def test_stacks_know_their_size() -> None:
    nvfp4 = Nvfp4Experts.quantise(random_stack(4, (3, 8, 32)))
    fp8 = Fp8Experts.quantise(random_stack(4, (3, 8, 32)), (4, 16))
    for stack in (nvfp4, fp8):
        assert (stack.experts, stack.out_dim, stack.in_dim) == (3, 8, 32)
    assert nvfp4.nbytes == 3 * (8 * 16 + 8 * 2 + 4)
    assert fp8.nbytes == 3 * (8 * 32 + 2 * 2 * 4)


def test_stacks_are_inputs_that_export_accepts() -> None:
    class Decode(torch.nn.Module):
        def forward(self, stack: ExpertMatrix) -> Tensor:
            return stack.dequantise(1)

    stack = Nvfp4Experts.quantise(random_stack(5, (2, 4, 16)))
    exported = torch.export.export(Decode(), (stack,)).module(check_guards=False)
    assert torch.equal(exported(stack), stack.dequantise(1))
