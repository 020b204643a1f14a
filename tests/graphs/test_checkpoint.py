"""Opening and loading: every format and spelling gives the same model, mapped and not copied."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from graphs.checkpoint import Checkpoint
from graphs.formats import Bf16Experts, ExpertMatrix, Fp8Experts, Nvfp4Experts
from graphs.weights import DenseWeights, LayerWeights, MoeWeights
from tests.graphs import variants
from tests.graphs.variants import FORMATS, GOLDEN, load

MTP = (8, 9, 10)


@pytest.fixture(autouse=True)
def _notes_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def moe(layer: LayerWeights) -> MoeWeights:
    assert isinstance(layer.feed_forward, MoeWeights)
    return layer.feed_forward


@pytest.mark.parametrize("source", FORMATS)
def test_every_golden_checkpoint_loads_without_a_note(source: str) -> None:
    checkpoint = Checkpoint.open(GOLDEN / source)
    weights = checkpoint.load()
    assert checkpoint.notes == ()
    assert (len(weights.layers), len(weights.mtp)) == (8, 3)
    kinds = [type(layer.feed_forward) for layer in weights.layers]
    assert kinds == [DenseWeights, *[MoeWeights] * 6, DenseWeights]
    sparse = [layer.attention.indexer is not None for layer in weights.layers]
    assert sparse == [index in (3, 7) for index in range(8)]


def test_every_field_holds_the_tensor_of_its_name() -> None:
    """Against the safetensors library and names written out here (architecture 2.1)."""
    stored = variants.read_all(GOLDEN / "bf16")
    weights = variants.flat(load(GOLDEN / "bf16"))
    layer = {
        "input_norm": "input_layernorm.weight",
        "post_norm": "post_attention_layernorm.weight",
        **{f"attention.{p}": f"self_attn.{p}_proj.weight" for p in "qkvgo"},
        "attention.q_norm": "self_attn.q_norm.weight",
        "attention.k_norm": "self_attn.k_norm.weight",
    }
    index = "self_attn.sparse_indexer"
    indexer = {
        **{f"attention.indexer.{p}": f"{index}_{p}.weight" for p in "qkzw"},
        "attention.indexer.q_norm": f"{index}_q_norm.weight",
        "attention.indexer.k_norm": f"{index}_k_norm.weight",
        "attention.indexer.k_norm_bias": f"{index}_k_norm.bias",
        "attention.indexer.ssmax_s": "self_attn.ssmax_s",
    }
    projections = ("gate", "up", "down")
    dense = {f"feed_forward.{p}": f"mlp.{p}_proj.weight" for p in projections}
    routed = {
        "feed_forward.router": "moe.gate.weight",
        "feed_forward.router_bias": "moe.router_bias",
        **{f"feed_forward.{p}.weight": f"moe.{p}_proj.weight" for p in projections},
        **{f"feed_forward.shared.{p}": f"share_expert.{p}_proj.weight" for p in projections},
    }
    mtp = {
        "eh_proj": "eh_proj.weight",
        "embed_norm": "enorm.weight",
        "hidden_norm": "hnorm.weight",
        "head_norm": "transformer.shared_head.norm.weight",
        "head": "transformer.shared_head.output.weight",
        **{f"layer.{field}": name for field, name in (layer | dense).items()},
    }
    expected = {
        "embed": "model.embed_tokens.weight",
        "norm": "model.norm.weight",
        "head": "lm_head.weight",
    }
    for i in range(8):
        parts = layer | (indexer if i in (3, 7) else {}) | (routed if 1 <= i <= 6 else dense)
        expected |= {f"layers.{i}.{f}": f"model.layers.{i}.{n}" for f, n in parts.items()}
    for depth, i in enumerate(MTP):
        expected |= {f"mtp.{depth}.{f}": f"model.layers.{i}.{n}" for f, n in mtp.items()}
    assert weights.keys() == expected.keys()
    for field, name in expected.items():
        wanted = stored[name].float() if name.endswith("moe.gate.weight") else stored[name]
        assert weights[field].dtype == wanted.dtype, field
        assert torch.equal(weights[field], wanted), field


@pytest.mark.parametrize(
    ("source", "layer", "kind"),
    [
        ("bf16", 1, Bf16Experts),
        ("fp8", 1, Fp8Experts),
        ("fp8", 6, Bf16Experts),
        ("nvfp4-packed", 1, Nvfp4Experts),
        ("nvfp4-per-expert", 1, Nvfp4Experts),
    ],
)
def test_experts_stay_in_their_stored_precision(
    source: str, layer: int, kind: type[ExpertMatrix]
) -> None:
    routed = moe(Checkpoint.open(GOLDEN / source).load_layer(layer))
    for matrix, shape in ((routed.gate, (32, 64)), (routed.up, (32, 64)), (routed.down, (64, 32))):
        assert type(matrix) is kind
        assert (matrix.experts, matrix.out_dim, matrix.in_dim) == (16, *shape)


def test_b8_packed_and_per_expert_files_load_byte_equal() -> None:
    variants.assert_byte_equal(load(GOLDEN / "nvfp4-packed"), load(GOLDEN / "nvfp4-per-expert"))


def to_compressed(tensors: variants.Tensors) -> variants.Tensors:
    """compressed-tensors' names and divisors, from per-expert ModelOpt tensors."""
    names = {
        "weight": "weight_packed",
        "weight_scale_2": "weight_global_scale",
        "input_scale": "input_global_scale",
    }
    changed = {}
    for name, tensor in tensors.items():
        stem, _, suffix = name.rpartition(".")
        new = names.get(suffix, suffix) if ".moe.experts." in name else suffix
        changed[f"{stem}.{new}"] = 1 / tensor if new.endswith("global_scale") else tensor
    return changed


def test_b4_compressed_tensors_global_scale_is_a_divisor(tmp_path: Path) -> None:
    """One matrix in both conventions decodes equally; powers of two have exact reciprocals."""

    def powers(tensors: variants.Tensors) -> None:
        for name in [name for name in tensors if name.endswith("weight_scale_2")]:
            tensors[name] = torch.tensor(2.0 ** -(8 + len(name) % 3))

    modelopt = variants.copy(tmp_path / "modelopt", "nvfp4-per-expert")
    variants.edit_tensors(modelopt, powers)
    compressed = variants.copy(tmp_path / "compressed", "nvfp4-per-expert")
    variants.edit_tensors(compressed, powers)
    variants.edit_tensors(compressed, to_compressed)
    assert any(name.endswith("weight_packed") for name in variants.weight_map(compressed))
    variants.assert_byte_equal(load(modelopt), load(compressed))


PREFIXES: dict[str, Callable[[str], str]] = {
    "model.language_model": lambda n: (
        n.replace("model.", "model.language_model.", 1)
        if n.startswith("model.")
        else f"model.{n}"
        if n.startswith("vi")
        else n
    ),
    "language_model.model": lambda n: n if n.startswith("vi") else f"language_model.{n}",
    "no transformer": lambda n: n.replace(".transformer.shared_head.", ".shared_head."),
    "shared_head.head": lambda n: n.replace("shared_head.output", "shared_head.head"),
    "moe.share_expert": lambda n: n.replace(".share_expert.", ".moe.share_expert."),
}


@pytest.mark.parametrize("spelling", PREFIXES)
def test_every_name_spelling_loads_the_same_model(tmp_path: Path, spelling: str) -> None:
    folder = variants.copy(tmp_path / "variant", "bf16")
    before = set(variants.weight_map(folder))
    variants.rename(folder, PREFIXES[spelling])
    assert set(variants.weight_map(folder)) != before
    variants.assert_byte_equal(load(folder), load(GOLDEN / "bf16"))


@pytest.mark.parametrize("shape", [(), (1,), (16,)])
def test_packed_global_scales_may_be_scalars(tmp_path: Path, shape: tuple[int, ...]) -> None:
    def change(tensors: variants.Tensors) -> None:
        for name in [name for name in tensors if name.endswith(("scale_2", "input_scale"))]:
            tensors[name] = torch.full(shape, 0.5)

    folder = variants.copy(tmp_path / "variant", "nvfp4-packed")
    variants.edit_tensors(folder, change)
    gate = moe(Checkpoint.open(folder).load_layer(2)).gate
    assert isinstance(gate, Nvfp4Experts)
    assert torch.equal(gate.scale_2, torch.full((16,), 0.5))


def test_per_expert_scales_may_be_one_element_vectors(tmp_path: Path) -> None:
    def change(tensors: variants.Tensors) -> None:
        for name in [name for name in tensors if name.endswith(("scale_2", "input_scale"))]:
            tensors[name] = tensors[name].view(1)

    folder = variants.copy(tmp_path / "variant", "nvfp4-per-expert")
    variants.edit_tensors(folder, change)
    variants.assert_byte_equal(load(folder), load(GOLDEN / "nvfp4-packed"))


def test_per_expert_bf16_and_fp8_load_as_their_packed_forms(tmp_path: Path) -> None:
    def split(tensors: variants.Tensors) -> variants.Tensors:
        changed = {}
        for name, tensor in tensors.items():
            head, moe_, tail = name.partition(".moe.")
            if moe_ and tail.split(".")[0] in ("gate_proj", "up_proj", "down_proj"):
                for expert in range(16):
                    changed[f"{head}.moe.experts.{expert}.{tail}"] = tensor[expert].clone()
            else:
                changed[name] = tensor
        return changed

    folder = variants.copy(tmp_path / "variant", "fp8")
    variants.edit_tensors(folder, split)
    variants.assert_byte_equal(load(folder), load(GOLDEN / "fp8"))


def test_fp8_blocks_may_be_ragged_on_disk(tmp_path: Path) -> None:
    def change(tensors: variants.Tensors) -> None:
        for name in [name for name in tensors if name.endswith("weight_scale_inv")]:
            rows, columns = (32, 64) if "down" not in name else (64, 32)
            tensors[name] = torch.ones(16, -(-rows // 24), -(-columns // 24))

    folder = variants.copy(tmp_path / "variant", "fp8")
    variants.edit_tensors(folder, change)
    variants.edit_config(
        folder, lambda c: c["quantization_config"].update(weight_block_size=[24, 24])
    )
    gate = moe(Checkpoint.open(folder).load_layer(1)).gate
    assert torch.equal(gate.dequantise(3), gate.weight[3].float())


def test_norms_stored_in_bf16_are_widened(tmp_path: Path) -> None:
    def narrow(tensors: variants.Tensors) -> None:
        for name, tensor in tensors.items():
            if "norm" in name:
                tensors[name] = tensor.bfloat16()

    folder = variants.copy(tmp_path / "variant", "bf16")
    variants.edit_tensors(folder, narrow)
    norm = Checkpoint.open(folder).load_layer(0).input_norm
    assert norm.dtype == torch.float32
    wanted = variants.read_all(GOLDEN / "bf16")["model.layers.0.input_layernorm.weight"]
    assert torch.equal(norm, wanted.bfloat16().float())
