"""Writes GGUF files, version 3: metadata, tensor descriptions, aligned data.

Knows the container and the few data types that are written here. Does not know models. Keeps true:
tensors are streamed one at a time in the order they are described, so a file may be far larger than
memory.
"""

import io
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
F32, BF16, NVFP4 = 0, 30, 40
NVFP4_COLUMNS, NVFP4_BYTES = 64, 36
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9

Scalar = bool | int | float | str
Value = Scalar | Sequence[Scalar]


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """`shape` has the columns last; `data` gives the stored bytes as a tensor when it is asked."""

    name: str
    kind: int
    shape: tuple[int, ...]
    data: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        count = torch.Size(self.shape).numel()
        if self.kind == NVFP4:
            return count // NVFP4_COLUMNS * NVFP4_BYTES
        return count * (4 if self.kind == F32 else 2)


def write_gguf(path: Path, metadata: Mapping[str, Value], tensors: Sequence[GgufTensor]) -> None:
    """Write the file; a tensor whose data has another size than its description is refused."""
    header = io.BytesIO()
    header.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
    for key, value in metadata.items():
        _string(header, key)
        _value(header, value)
    offset = 0
    for tensor in tensors:
        _string(header, tensor.name)
        header.write(struct.pack("<I", len(tensor.shape)))
        header.write(struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape)))
        header.write(struct.pack("<IQ", tensor.kind, offset))
        offset += _aligned(tensor.nbytes)
    with path.open("wb") as file:
        _padded(file, header.getvalue())
        for tensor in tensors:
            data = tensor.data().contiguous().view(torch.uint8).numpy()
            if data.nbytes != tensor.nbytes:
                raise ValueError(f"{tensor.name}: {data.nbytes} bytes, not {tensor.nbytes}")
            _padded(file, data.tobytes())


def _value(file: BinaryIO, value: Value) -> None:
    if isinstance(value, bool | int | float | str):
        kind = _kind(value)
        file.write(struct.pack("<I", kind))
        _scalar(file, kind, value)
        return
    kind = _kind(value[0])
    kind = INT32 if kind == UINT32 else kind  # what readers expect of lists
    file.write(struct.pack("<IIQ", ARRAY, kind, len(value)))
    for item in value:
        _scalar(file, kind, item)


def _kind(value: Scalar) -> int:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return UINT32
    return FLOAT32 if isinstance(value, float) else STRING


def _scalar(file: BinaryIO, kind: int, value: Scalar) -> None:
    if isinstance(value, str):
        _string(file, value)
    else:
        file.write(struct.pack({BOOL: "<?", UINT32: "<I", INT32: "<i", FLOAT32: "<f"}[kind], value))


def _string(file: BinaryIO, text: str) -> None:
    data = text.encode()
    file.write(struct.pack("<Q", len(data)) + data)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _padded(file: BinaryIO, data: bytes) -> None:
    file.write(data + bytes(_aligned(len(data)) - len(data)))
