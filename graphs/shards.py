"""safetensors files and the index over them: which tensor lies where, read without its data.

Knows the container format and the folder's index. Does not know what a tensor is for. Keeps true:
only files and names that the index lists are opened or used, a header is checked against the file's
size before it is believed, and tensors are views of a private memory map (writing to one never
reaches the file). Architecture 2.3.
"""

import itertools
import json
import math
import operator
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphs.errors import CheckpointError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
PREFIX = 8  # bytes of the little-endian header length
HEADER_LIMIT = 100_000_000  # the container format's own limit
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "I64": torch.int64,
    "F64": torch.float64,
}


class Entry(NamedTuple):
    """One tensor of a shard: start and end count bytes from the end of the header."""

    start: int
    end: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.end - self.start


class Shard:
    """One safetensors file. Opening reads the header; the data is mapped when first asked for.

    Raises CheckpointError naming the file (and tensor) for a file that is not a regular file, is
    shorter than its header says, or whose header is not well formed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = path.stat().st_size
        header, self._data_at = _read_header(path, self._size)
        self.entries = {
            name: _entry(value, f"{path.name}: {name!r}")
            for name, value in header.items()
            if name != "__metadata__"
        }
        self._check_extent()

    def _check_extent(self) -> None:
        by_start = sorted(self.entries.items(), key=operator.itemgetter(1))
        for (first, one), (second, two) in itertools.pairwise(by_start):
            if two.start < one.end:
                raise CheckpointError(f"{self.path.name}: {first!r} and {second!r} overlap")
        needed = self._data_at + max((entry.end for entry in self.entries.values()), default=0)
        if self._size < needed:
            cut = [name for name, e in by_start if self._data_at + e.end > self._size]
            raise CheckpointError(
                f"{self.path.name} is truncated: its header describes {needed} bytes, the file has "
                f"{self._size}; incomplete: {listed(cut)}"
            )

    @cached_property
    def _data(self) -> Tensor:
        return torch.from_file(str(self.path), shared=False, size=self._size, dtype=torch.uint8)

    def tensor(self, name: str) -> Tensor:
        """The stored tensor, a view of the mapped file (a copy only where it is misaligned)."""
        entry = self.entries[name]
        dtype = DTYPES[entry.dtype]
        raw = self._data[self._data_at + entry.start : self._data_at + entry.end]
        if raw.data_ptr() % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(entry.shape)


def read_index(folder: Path) -> dict[str, str]:
    """Tensor name -> file name, from the index; a lone model.safetensors is its own index.

    Raises CheckpointError for no index, one that is not an object of strings, or a file outside the
    folder. Links are followed: download caches link every shard to a blob elsewhere.
    """
    path = folder / INDEX_FILE
    if not path.is_file():
        if not (folder / SINGLE_FILE).is_file():
            raise CheckpointError(f"{folder} holds neither {INDEX_FILE} nor {SINGLE_FILE}")
        return dict.fromkeys(Shard(folder / SINGLE_FILE).entries, SINGLE_FILE)
    index = _parse_json(_read(path), INDEX_FILE)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{INDEX_FILE} has no weight_map object")
    first: dict[str, str] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str):
            raise CheckpointError(f"{INDEX_FILE}: {name!r} maps to {file!r}, not to a file name")
        first.setdefault(file, name)
    for file, name in first.items():
        _check_inside(name, file)
    return weight_map


def open_shards(folder: Path, index: Mapping[str, str]) -> dict[str, Shard]:
    """Every file the index names, opened; refuses missing files with the tensors they should hold,
    and names that a file does not contain."""
    names_of: dict[str, list[str]] = {}
    for name, file in index.items():
        names_of.setdefault(file, []).append(name)
    missing = [file for file in names_of if not (folder / file).is_file()]
    if missing:
        holding = "; ".join(f"{file} (holds {listed(names_of[file])})" for file in missing[:4])
        raise CheckpointError(f"{folder}: {len(missing)} shard files are missing: {holding}")
    shards = {file: Shard(folder / file) for file in names_of}
    for file, shard in shards.items():
        if absent := [name for name in names_of[file] if name not in shard.entries]:
            raise CheckpointError(
                f"{file} does not hold tensors that the index places there: {listed(absent)}"
            )
    return shards


def listed(names: list[str] | tuple[str, ...], limit: int = 40) -> str:
    """Names for an error message, the rest counted."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def _check_inside(name: str, file: str) -> None:
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or "\\" in file or path.suffix != ".safetensors":
        raise CheckpointError(
            f"{INDEX_FILE}: {name!r} maps to {file!r}, which is not a .safetensors file inside the "
            "checkpoint folder"
        )


def _read(path: Path, size: int = -1, offset: int = 0) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def _read_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """The header object and the file offset where data begins."""
    prefix = _read(path, PREFIX)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < PREFIX or length > min(size - PREFIX, HEADER_LIMIT):
        raise CheckpointError(
            f"{path.name} is truncated or not a safetensors file: it has {size} bytes, its first "
            f"{PREFIX} announce a header of {length}"
        )
    return _parse_json(_read(path, length, PREFIX), f"header of {path.name}"), PREFIX + length


def _parse_json(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{listed(twice)} appears twice")
    return values


def _naturals(value: list[Any]) -> bool:
    # In one pass each, without a generator: a per-expert release has 360 thousand entries.
    return {int}.issuperset(map(type, value)) and min(value, default=0) >= 0


def _entry(value: Any, where: str) -> Entry:
    fields = value if isinstance(value, dict) else {}
    dtype, shape = fields.get("dtype"), fields.get("shape")
    at = fields.get("data_offsets")
    if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(at, list)):
        raise CheckpointError(f"{where} has no dtype, shape and data_offsets: {value!r}")
    if not (_naturals(shape) and _naturals(at) and len(at) == 2 and at[0] <= at[1]):
        raise CheckpointError(f"{where} has a bad shape or data_offsets: {value!r}")
    known = DTYPES.get(dtype)
    if known is not None and math.prod(shape) * known.itemsize != at[1] - at[0]:
        raise CheckpointError(
            f"{where}: {dtype} {shape} does not fill its {at[1] - at[0]} bytes of data"
        )
    return Entry(at[0], at[1], dtype, tuple(shape))
