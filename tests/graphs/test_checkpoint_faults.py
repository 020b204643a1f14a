"""Broken and odd checkpoints are refused with names, or read right; ids as in the list of faults.

Each variant differs from a golden checkpoint in one thing.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from graphs.checkpoint import Checkpoint
from graphs.errors import CheckpointError
from graphs.formats import Nvfp4Experts
from graphs.weights import DenseWeights, MoeWeights
from tests.graphs import variants
from tests.graphs.variants import GOLDEN, Tensors, put, refused

MTP_PREFIXES = tuple(f"model.layers.{index}." for index in (8, 9, 10))
HEADS = tuple(f"{prefix}transformer.shared_head.output.weight" for prefix in MTP_PREFIXES)
ARRAYS = (
    "layer_types",
    "rope_theta",
    "partial_rotary_factors",
    "swiglu_limits",
    "swiglu_limits_shared",
)


def routed(folder: Path, layer: int) -> MoeWeights:
    weights = Checkpoint.open(folder).load_layer(layer).feed_forward
    assert isinstance(weights, MoeWeights)
    return weights


def without_mtp(folder: Path) -> None:
    names = [name for name in variants.weight_map(folder) if name.startswith(MTP_PREFIXES)]
    variants.drop(folder, *names)


# A. MTP weights and config


@pytest.mark.filterwarnings("ignore:.*exclude patterns that match no module")
def test_a1_mtp_announced_but_absent_with_arrays_cut_to_the_backbone(packed: Path) -> None:
    without_mtp(packed)

    def cut(config: dict[str, Any]) -> None:
        for key in ARRAYS:
            config["text_config"][key] = config["text_config"][key][:8]

    variants.edit_config(packed, cut)
    lengths = [f"{key} 8" for key in ARRAYS]
    refused(packed, "3 MTP layers", "lacks 51", "model.layers.8.eh_proj.weight", *lengths)
    weights = Checkpoint.open(packed).load(mtp=False)
    assert weights.mtp == ()
    assert len(weights.layers) == 8


def test_a12_mtp_announced_but_absent_with_whole_arrays(plain: Path) -> None:
    without_mtp(plain)
    checkpoint = Checkpoint.open(plain)
    assert len(checkpoint.missing_mtp) == 51
    with pytest.raises(CheckpointError, match="layer_types 11"):
        checkpoint.load_mtp(0)
    refused(plain, *HEADS)


def test_a12_the_last_mtp_layer_alone_is_absent(plain: Path) -> None:
    names = [name for name in variants.weight_map(plain) if name.startswith(MTP_PREFIXES[2])]
    variants.drop(plain, *names)
    refused(plain, "lacks 17", *names)


@pytest.mark.filterwarnings("ignore:.*exclude patterns that match no module")
def test_a2_weight_kind_comes_from_the_tensors_not_from_the_config(packed: Path) -> None:
    def forget_mtp(quant: dict[str, Any], key: str) -> None:
        quant[key] = [p for p in quant[key] if not p.startswith("model.layers.")]

    variants.edit_config(packed, lambda c: forget_mtp(c["quantization_config"], "ignore"))
    variants.edit_json(
        packed / "hf_quant_config.json", lambda c: forget_mtp(c["quantization"], "exclude_modules")
    )
    weights = Checkpoint.open(packed).load()
    for mtp in weights.mtp:
        dense = mtp.layer.feed_forward
        assert isinstance(dense, DenseWeights)
        assert (dense.gate.dtype, tuple(dense.gate.shape)) == (torch.bfloat16, (96, 64))
        assert (mtp.eh_proj.dtype, tuple(mtp.eh_proj.shape)) == (torch.bfloat16, (64, 128))
    assert isinstance(routed(packed, 1).gate, Nvfp4Experts)


def test_a2_one_projection_may_be_bf16_beside_quantised_ones(packed: Path) -> None:
    plain = variants.read_all(GOLDEN / "bf16")

    def change(tensors: Tensors) -> None:
        stem = "model.layers.4.moe.down_proj"
        for name in [name for name in tensors if name.startswith(stem)]:
            del tensors[name]
        tensors[f"{stem}.weight"] = plain[f"{stem}.weight"]

    variants.edit_tensors(packed, change)
    with pytest.warns(UserWarning, match=r"not quantised.*model\.layers\.4\.moe\.down_proj"):
        weights = routed(packed, 4)
    assert torch.equal(
        weights.down.dequantise(2), plain["model.layers.4.moe.down_proj.weight"][2].float()
    )
    assert isinstance(weights.gate, Nvfp4Experts)


@pytest.mark.parametrize("source", variants.FORMATS)
def test_a3_every_depth_has_its_own_head(source: str) -> None:
    weights = Checkpoint.open(GOLDEN / source).load()
    stored = variants.read_all(GOLDEN / source)
    heads = [mtp.head for mtp in weights.mtp]
    for name, head in zip(HEADS, heads, strict=True):
        assert torch.equal(head, stored[name])
        assert not torch.equal(head, weights.head)
    assert not torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[1], heads[2])
    assert not torch.equal(heads[0], heads[2])


@pytest.mark.parametrize("depth", range(3))
def test_a4_an_absent_head_is_an_error_never_shared_in_silence(plain: Path, depth: int) -> None:
    variants.drop(plain, HEADS[depth])
    refused(plain, HEADS[depth], "lacks 1 ")


def test_a4_an_absent_main_head_is_an_error(plain: Path) -> None:
    variants.drop(plain, "lm_head.weight")
    refused(plain, "lm_head.weight")


# B. NVFP4 checkpoints


@pytest.mark.parametrize("value", [None, math.nan, 0.0])
def test_b1_input_scale_is_never_read(packed: Path, value: float | None) -> None:
    """Absent, NaN or zero: the same finite weights, and no field that could hold it."""

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("input_scale")]:
            if value is None:
                del tensors[name]
            else:
                tensors[name] = torch.full_like(tensors[name], value)

    variants.edit_tensors(packed, change)
    changed, golden = routed(packed, 3), routed(GOLDEN / "nvfp4-packed", 3)
    for one, two in ((changed.gate, golden.gate), (changed.down, golden.down)):
        assert torch.equal(one.dequantise(5), two.dequantise(5))
        assert one.dequantise(5).isfinite().all()
        assert not hasattr(one, "input_scale")


def test_b1_input_scale_may_be_absent_for_some_experts(single: Path) -> None:
    variants.drop(single, "model.layers.3.moe.experts.7.up_proj.input_scale")
    assert routed(single, 3).up.dequantise(7).isfinite().all()


def test_b2_gate_and_up_keep_their_own_scale(packed: Path) -> None:
    scales = {"gate": torch.full((16,), 0.25), "up": torch.arange(16) + 2.0}
    for projection, scale in scales.items():
        put(packed, **{f"model__layers__2__moe__{projection}_proj__weight_scale_2": scale})
    before, after = routed(GOLDEN / "nvfp4-packed", 2), routed(packed, 2)
    for projection, scale in scales.items():
        old, new = getattr(before, projection), getattr(after, projection)
        assert torch.equal(new.scale_2, scale)
        ratio = scale[9] / old.scale_2[9]
        torch.testing.assert_close(new.dequantise(9), old.dequantise(9) * ratio)


@pytest.mark.parametrize("suffix", ["weight", "weight_scale", "weight_scale_2"])
def test_b3_an_expert_that_is_not_filled_is_named(single: Path, suffix: str) -> None:
    name = f"model.layers.5.moe.experts.11.down_proj.{suffix}"
    variants.drop(single, name)
    with pytest.raises(CheckpointError, match=f"missing tensors: {name}"):
        Checkpoint.open(single)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_b3_a_scale_that_was_never_written_is_named(packed: Path, value: float) -> None:
    scale = torch.ones(16)
    scale[13] = value
    put(packed, model__layers__1__moe__up_proj__weight_scale_2=scale)
    refused(packed, "model.layers.1.moe.up_proj", "scale_2", "experts 13")


def test_b3_a_tensor_may_not_be_filled_twice(plain: Path) -> None:
    put(plain, model__language_model__norm__weight=torch.zeros(64))
    refused(plain, "model.norm.weight", "model.language_model.norm.weight", "same tensor")


def test_b3_experts_may_not_be_stored_packed_and_singly(packed: Path) -> None:
    weight = torch.zeros(32, 32, dtype=torch.uint8)
    put(packed, model__layers__2__moe__experts__4__gate_proj__weight=weight)
    refused(packed, "model.layers.2.moe.gate_proj", "twice")


def test_b3_an_expert_too_many_is_named(single: Path) -> None:
    name = "model.layers.2.moe.experts.16.gate_proj.weight"
    weight = torch.zeros(32, 32, dtype=torch.uint8)
    variants.edit_tensors(single, lambda tensors: tensors.update({name: weight}))
    refused(single, name)


def test_b4_a_divisor_of_zero_is_named(single: Path) -> None:
    """compressed-tensors' global scale divides: 0 would become inf and spread as NaN."""
    names = {"weight": "weight_packed", "weight_scale_2": "weight_global_scale"}

    def change(tensors: Tensors) -> Tensors:
        changed = {}
        for name, tensor in tensors.items():
            stem, _, suffix = name.rpartition(".")
            if ".moe.experts." not in name or suffix == "input_scale":
                changed |= {name: tensor} if ".moe.experts." not in name else {}
                continue
            changed[f"{stem}.{names.get(suffix, suffix)}"] = tensor
        changed["model.layers.2.moe.experts.3.up_proj.weight_global_scale"] = torch.zeros(())
        return changed

    variants.edit_tensors(single, change)
    refused(single, "model.layers.2.moe.up_proj", "experts 3")


@pytest.mark.parametrize("shape", [(2,), (15,), (16, 1)])
def test_wrong_global_scale_shape_is_named(packed: Path, shape: tuple[int, ...]) -> None:
    put(packed, model__layers__4__moe__gate_proj__weight_scale_2=torch.ones(shape))
    words = ("model.layers.4.moe.gate_proj.weight_scale_2", str(list(shape)), "[16] or [1] or []")
    refused(packed, *words, "model-layer-004.safetensors")


def test_wrong_block_scale_shape_is_named(packed: Path) -> None:
    scale = torch.ones(16, 64, 4).to(torch.float8_e4m3fn)
    put(packed, model__layers__4__moe__down_proj__weight_scale=scale)
    refused(packed, "model.layers.4.moe.down_proj.weight_scale", "[16, 64, 4]", "[16, 64, 2]")


def test_wrong_input_scale_shape_is_named(packed: Path) -> None:
    put(packed, model__layers__4__moe__down_proj__input_scale=torch.ones(3))
    refused(packed, "model.layers.4.moe.down_proj.input_scale", "[3]")


def test_wrong_fp8_scale_shape_is_named(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "fp8", "fp8")
    put(folder, model__layers__2__moe__gate_proj__weight_scale_inv=torch.ones(16, 4, 2))
    refused(folder, "model.layers.2.moe.gate_proj.weight_scale_inv", "[16, 4, 2]", "[16, 2, 4]")


def test_fp8_without_a_block_size_is_named(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "fp8", "fp8")
    variants.edit_config(folder, lambda c: c["quantization_config"].pop("weight_block_size"))
    refused(folder, "model.layers.1.moe.gate_proj", "weight_block_size")


def test_experts_of_one_stack_must_share_a_format(single: Path) -> None:
    name = "model.layers.2.moe.experts.6.gate_proj.weight"
    weight = torch.zeros(32, 64, dtype=torch.bfloat16)
    variants.edit_tensors(single, lambda tensors: tensors.update({name: weight}))
    refused(single, name, "BF16", "U8")


def test_an_unknown_expert_dtype_is_named(plain: Path) -> None:
    put(plain, model__layers__2__moe__up_proj__weight=torch.zeros(16, 32, 64, dtype=torch.int8))
    refused(plain, "model.layers.2.moe.up_proj", "I8")


def test_a_quantised_router_or_attention_is_refused(packed: Path) -> None:
    put(packed, model__layers__2__moe__gate__weight=torch.zeros(16, 32, dtype=torch.uint8))
    refused(packed, "model.layers.2.moe.gate.weight", "U8", "F32 or BF16")


def test_nvfp4_experts_narrower_than_a_block_are_refused(packed: Path) -> None:
    variants.edit_config(packed, lambda c: c["text_config"].update(moe_intermediate_size=24))
    refused(packed, "model.layers.1.moe.down_proj", "multiple of 16")
