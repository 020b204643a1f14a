"""Variants of the golden checkpoints: the same folder with tensors, config or files changed.

Knows how to rewrite a small checkpoint. Keeps true: what a test does not change is as in the golden
folder, and the index lists exactly the tensors that the change left.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from graphs.checkpoint import Checkpoint
from graphs.errors import CheckpointError
from graphs.weights import ModelWeights

GOLDEN = Path(__file__).parent.parent / "golden"
INDEX = "model.safetensors.index.json"
FORMATS = ("bf16", "fp8", "nvfp4-packed", "nvfp4-per-expert")

Tensors = dict[str, Tensor]


def copy(folder: Path, source: str) -> Path:
    """A writable copy of one golden checkpoint."""
    shutil.copytree(GOLDEN / source, folder, copy_function=shutil.copyfile)
    return folder


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_config(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    edit_json(folder / "config.json", change)


def weight_map(folder: Path) -> dict[str, str]:
    return json.loads((folder / INDEX).read_text())["weight_map"]


def read_all(folder: Path) -> Tensors:
    """Every indexed tensor, read by the safetensors library."""
    index = weight_map(folder)
    files = {file: load_file(folder / file) for file in set(index.values())}
    return {name: files[file][name] for name, file in index.items()}


def edit_tensors(folder: Path, change: Callable[[Tensors], Tensors | None]) -> None:
    """Change all tensors, in place or by returning others; new names get a file of their own."""
    index = weight_map(folder)
    tensors = read_all(folder)
    tensors = change(tensors) or tensors
    placed = {name: index.get(name, "model-added.safetensors") for name in tensors}
    for file in sorted({*index.values(), *placed.values()}):
        members = {n: t.contiguous() for n, t in tensors.items() if placed[n] == file}
        (folder / file).unlink(missing_ok=True)
        if members:
            save_file(members, folder / file, {"format": "pt"})
    edit_json(folder / INDEX, lambda value: value.update(weight_map=placed))


def rename(folder: Path, new_name: Callable[[str], str]) -> None:
    """Give every tensor another name."""
    edit_tensors(folder, lambda tensors: {new_name(name): t for name, t in tensors.items()})


def drop(folder: Path, *names: str) -> None:
    """Remove tensors from files and index; each has to exist."""

    def remove(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    edit_tensors(folder, remove)


def put(folder: Path, **tensors: Any) -> None:
    """Set or add tensors, `__` in a keyword standing for a dot."""
    named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    edit_tensors(folder, lambda every: every.update(named))


def refused(folder: Path, *words: str) -> None:
    """Opening or loading raises CheckpointError whose message holds every word."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder).load()
    for word in words:
        assert word in str(caught.value)


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


def load(folder: Path) -> ModelWeights:
    return Checkpoint.open(folder).load()
