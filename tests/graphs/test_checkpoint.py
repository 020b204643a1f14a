"""Opening and loading: every format and spelling gives the same model, mapped and not copied."""

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from graphs.checkpoint import Checkpoint
from graphs.formats import Bf16Experts, ExpertMatrix, Fp8Experts, Nvfp4Experts
from graphs.weights import DenseWeights, LayerWeights, MoeWeights
from tests.graphs import variants
from tests.graphs.variants import FORMATS, GOLDEN

MTP = (8, 9, 10)


@pytest.fixture(autouse=True)
def _notes_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def flat(value: Any, prefix: str = "") -> dict[str, Tensor]:
    """Dotted field path -> tensor, over nested dataclasses and tuples."""
    if isinstance(value, Tensor):
        return {prefix: value}
    found: dict[str, Tensor] = {}
    if dataclasses.is_dataclass(value):
        members = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(value, tuple):
        members = [(str(index), item) for index, item in enumerate(value)]
    else:
        members = []
    for name, member in members:
        found |= flat(member, f"{prefix}.{name}".removeprefix("."))
    return found


def assert_byte_equal(one: Any, two: Any) -> None:
    first, second = flat(one), flat(two)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        other = second[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), name
        same = torch.equal(
            tensor.contiguous().view(-1).view(torch.uint8),
            other.contiguous().view(-1).view(torch.uint8),
        )
        assert same, name


def load(folder: Path) -> Any:
    return Checkpoint.open(folder).load()


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
    weights = flat(load(GOLDEN / "bf16"))
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
    assert_byte_equal(load(GOLDEN / "nvfp4-packed"), load(GOLDEN / "nvfp4-per-expert"))


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
    assert_byte_equal(load(modelopt), load(compressed))


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
    assert_byte_equal(load(folder), load(GOLDEN / "bf16"))


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
    assert_byte_equal(load(folder), load(GOLDEN / "nvfp4-packed"))


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
    assert_byte_equal(load(folder), load(GOLDEN / "fp8"))


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


def test_tensors_are_views_of_the_mapped_file() -> None:
    """No copy: each storage is as large as the file the tensor lies in, and files are shared."""
    folder = GOLDEN / "nvfp4-packed"
    routed = moe(Checkpoint.open(folder).load_layer(2))
    size = (folder / "model-layer-002.safetensors").stat().st_size
    views = [tensor for tensor in flat(routed).values() if tensor.dtype != torch.float32]
    for tensor in (*views, routed.router_bias):
        assert tensor.untyped_storage().nbytes() == size
    assert len({tensor.untyped_storage().data_ptr() for tensor in views}) == 1


def test_writing_to_a_loaded_tensor_does_not_change_the_file(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "variant", "bf16")
    load(folder).embed.fill_(7)
    assert torch.equal(load(folder).embed, load(GOLDEN / "bf16").embed)


def test_misaligned_tensors_are_read_right(tmp_path: Path) -> None:
    """A header whose length is odd shifts every tensor off its alignment."""
    folder = variants.copy(tmp_path / "variant", "nvfp4-packed")
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = data[8 : 8 + length].rstrip() + b" "
        header += b" " * (1 - len(header) % 2)
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    assert_byte_equal(load(folder), load(GOLDEN / "nvfp4-packed"))


def test_one_file_without_an_index_is_its_own_index(tmp_path: Path) -> None:
    folder = tmp_path / "single"
    folder.mkdir()
    save_file(variants.read_all(GOLDEN / "bf16"), folder / "model.safetensors")
    (folder / "config.json").write_bytes((GOLDEN / "bf16" / "config.json").read_bytes())
    assert_byte_equal(load(folder), load(GOLDEN / "bf16"))


def test_shards_may_be_links_as_download_caches_make_them(tmp_path: Path) -> None:
    blobs = variants.copy(tmp_path / "blobs", "bf16")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for path in blobs.iterdir():
        (folder / path.name).symlink_to(Path("..") / "blobs" / path.name)
    assert_byte_equal(load(folder), load(GOLDEN / "bf16"))


def test_opening_reads_headers_only(tmp_path: Path) -> None:
    """Garbage data changes nothing about opening: no value is looked at."""
    folder = variants.copy(tmp_path / "variant", "nvfp4-packed")
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        path.write_bytes(data[:start] + b"\xff" * (len(data) - start))
    assert (
        Checkpoint.open(folder).tensors.keys()
        == Checkpoint.open(GOLDEN / "nvfp4-packed").tensors.keys()
    )


def test_hf_quant_config_alone_is_enough(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "variant", "nvfp4-packed")
    variants.edit_config(folder, lambda config: config.pop("quantization_config"))
    assert Checkpoint.open(folder).notes == ()


def test_index_metadata_may_be_absent(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "variant", "bf16")
    (folder / variants.INDEX).write_text(json.dumps({"weight_map": variants.weight_map(folder)}))
    assert_byte_equal(load(folder), load(GOLDEN / "bf16"))
