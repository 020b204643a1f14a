"""Odd and broken files: index, shards, headers. Refused with names, or read right.

Ids are those of the list of faults. Each variant differs from a golden checkpoint in one thing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from graphs.checkpoint import Checkpoint
from graphs.errors import ConfigError
from tests.graphs import variants
from tests.graphs.variants import GOLDEN, put, refused


def test_c1_a_missing_shard_is_named_with_its_tensors(packed: Path) -> None:
    (packed / "model-layer-005.safetensors").unlink()
    index = variants.weight_map(packed)
    names = [name for name, file in index.items() if file == "model-layer-005.safetensors"]
    refused(packed, "model-layer-005.safetensors", *names)


def test_c3_files_and_tensors_outside_the_index_are_ignored(plain: Path) -> None:
    stray = {name: torch.zeros(3) for name in ("model.norm.weight", "nobody.knows.this")}
    save_file(stray, plain / "model-00001-of-00001.safetensors")
    (plain / "model-broken.safetensors").write_bytes(b"not a safetensors file")
    assert torch.equal(
        Checkpoint.open(plain).load().norm, Checkpoint.open(GOLDEN / "bf16").load().norm
    )


def test_c3_an_unindexed_copy_inside_an_indexed_shard_is_ignored(plain: Path) -> None:
    """The release holds a second copy of an MTP layer in a backbone shard."""
    path = plain / "model-layer-007.safetensors"
    index = variants.weight_map(plain)
    stored = variants.read_all(plain)
    members = {n: t for n, t in stored.items() if index[n] == path.name}
    head = "model.layers.8.transformer.shared_head.output.weight"
    save_file(members | {head: torch.zeros(384, 64, dtype=torch.bfloat16)}, path)
    assert torch.equal(Checkpoint.open(plain).load_mtp(0).head, stored[head])


def test_c3_a_stale_index_is_named(plain: Path) -> None:
    """The index promises a tensor that its file does not hold."""

    def move(index: dict[str, Any]) -> None:
        index["weight_map"]["model.norm.weight"] = "model-layer-000.safetensors"

    variants.edit_json(plain / variants.INDEX, move)
    refused(plain, "model-layer-000.safetensors", "model.norm.weight")


def test_c3_a_tensor_dropped_from_the_index_is_missing_though_the_file_has_it(plain: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    variants.edit_json(plain / variants.INDEX, lambda index: index["weight_map"].pop(name))
    refused(plain, "missing", name)


def test_unknown_text_tensors_are_named(plain: Path) -> None:
    put(plain, model__layers__2__self_attn__surprise__weight=torch.zeros(2))
    refused(plain, "model.layers.2.self_attn.surprise.weight")


def test_a_damaged_vision_tower_is_a_note_and_text_still_loads(plain: Path) -> None:
    variants.drop(plain, "vision_model.conv1.weight")
    put(plain, vision_model__extra__weight=torch.zeros(2))
    with pytest.warns(UserWarning, match="vision tensors"):
        checkpoint = Checkpoint.open(plain)
    assert checkpoint.notes == (
        "missing vision tensors: vision_model.conv1.weight",
        "unknown vision tensors: vision_model.extra.weight",
    )
    assert len(checkpoint.load().layers) == 8


def test_wrong_shape_and_dtype_are_named(plain: Path) -> None:
    put(
        plain,
        model__layers__0__self_attn__q_proj__weight=torch.zeros(192, 64),
        model__embed_tokens__weight=torch.zeros(380, 64, dtype=torch.bfloat16),
    )
    refused(plain, "model.layers.0.self_attn.q_proj.weight", "F32", "expected BF16 [192, 64]")
    refused(plain, "model.embed_tokens.weight", "[380, 64]", "[384, 64]")


def test_a_truncated_shard_is_named(plain: Path) -> None:
    path = plain / "model-layer-003.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(plain, "model-layer-003.safetensors", "truncated", "model.layers.3.")


@pytest.mark.parametrize("keep", [0, 3, 8, 200])
def test_a_shard_cut_inside_its_header_is_named(plain: Path, keep: int) -> None:
    path = plain / "model-layer-003.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(plain, "model-layer-003.safetensors", "truncated")


def with_header(path: Path, change: Callable[[bytes], bytes]) -> None:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = change(data[8:end])
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])


def entry_of(**fields: Any) -> Callable[[bytes], bytes]:
    """Overwrite fields of one tensor's header entry."""

    def change(header: bytes) -> bytes:
        value = json.loads(header)
        value["model.layers.3.self_attn.q_norm.weight"].update(fields)
        return json.dumps(value).encode()

    return change


def twice(header: bytes) -> bytes:
    name = b'"model.layers.3.self_attn.q_norm.weight"'
    return header.replace(b'"model.layers.3.self_attn.k_norm.weight"', name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header: b"{" * len(header), ("JSON",)),
        (lambda header: b"[" * 100_000, ("JSON",)),
        (lambda header: b"\xff" * len(header), ("JSON",)),
        (lambda header: b"[1, 2]", ("not a JSON object",)),
        (twice, ("q_norm", "twice")),
        (entry_of(dtype=7), ("q_norm", "dtype")),
        (entry_of(shape="24"), ("q_norm", "shape")),
        (entry_of(shape=[-24]), ("q_norm", "shape")),
        (entry_of(shape=[25]), ("q_norm", "does not fill")),
        (entry_of(data_offsets=[0]), ("q_norm", "data_offsets")),
        (entry_of(data_offsets=[96, 0]), ("q_norm", "data_offsets")),
        (entry_of(data_offsets=[0, 96]), ("q_norm", "overlap")),
        (entry_of(data_offsets=[10**9, 10**9 + 96]), ("q_norm", "truncated")),
    ],
)
def test_a_bad_header_is_named(
    plain: Path, change: Callable[[bytes], bytes], words: tuple[str, ...]
) -> None:
    with_header(plain / "model-layer-003.safetensors", change)
    refused(plain, "model-layer-003.safetensors", *words)


@pytest.mark.parametrize(
    "file",
    [
        "../plain/model-extra-000.safetensors",
        "/etc/model-extra-000.safetensors",
        "a/../../model-extra-000.safetensors",
        "..\\model-extra-000.safetensors",
        "config.json",
        "",
    ],
)
def test_an_index_naming_a_path_outside_the_folder_is_refused(plain: Path, file: str) -> None:
    def change(index: dict[str, Any]) -> None:
        index["weight_map"]["model.norm.weight"] = file

    variants.edit_json(plain / variants.INDEX, change)
    refused(plain, "model.norm.weight", repr(file), "inside the checkpoint folder")


@pytest.mark.parametrize("file", [None, 3, ["model-extra-000.safetensors"]])
def test_an_index_entry_that_is_no_string_is_named(plain: Path, file: object) -> None:
    def change(index: dict[str, Any]) -> None:
        index["weight_map"]["model.norm.weight"] = file

    variants.edit_json(plain / variants.INDEX, change)
    refused(plain, "model.norm.weight", repr(file))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": "b", "a": "c"}}']
)
def test_a_bad_index_is_named(plain: Path, text: str) -> None:
    (plain / variants.INDEX).write_text(text)
    refused(plain, variants.INDEX)


def test_a_folder_without_weights_is_named(plain: Path) -> None:
    (plain / variants.INDEX).unlink()
    refused(plain, str(plain), variants.INDEX)


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        Checkpoint.open(tmp_path)
