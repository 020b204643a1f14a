"""How a checkpoint is read: mapped and not copied, headers first, whatever the files' form."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from graphs.checkpoint import Checkpoint
from graphs.weights import MoeWeights
from tests.graphs import variants
from tests.graphs.variants import GOLDEN, load


def test_tensors_are_views_of_the_mapped_file() -> None:
    """No copy: each storage is as large as the file the tensor lies in, and files are shared."""
    folder = GOLDEN / "nvfp4-packed"
    routed = Checkpoint.open(folder).load_layer(2).feed_forward
    assert isinstance(routed, MoeWeights)
    size = (folder / "model-layer-002.safetensors").stat().st_size
    views = [tensor for tensor in variants.flat(routed).values() if tensor.dtype != torch.float32]
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
    variants.assert_byte_equal(load(folder), load(GOLDEN / "nvfp4-packed"))


def test_one_file_without_an_index_is_its_own_index(tmp_path: Path) -> None:
    folder = tmp_path / "single"
    folder.mkdir()
    save_file(variants.read_all(GOLDEN / "bf16"), folder / "model.safetensors")
    (folder / "config.json").write_bytes((GOLDEN / "bf16" / "config.json").read_bytes())
    variants.assert_byte_equal(load(folder), load(GOLDEN / "bf16"))


def test_shards_may_be_links_as_download_caches_make_them(tmp_path: Path) -> None:
    blobs = variants.copy(tmp_path / "blobs", "bf16")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for path in blobs.iterdir():
        (folder / path.name).symlink_to(Path("..") / "blobs" / path.name)
    variants.assert_byte_equal(load(folder), load(GOLDEN / "bf16"))


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
    variants.assert_byte_equal(load(folder), load(GOLDEN / "bf16"))
