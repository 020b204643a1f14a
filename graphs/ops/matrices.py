"""Weight matrices as operator arguments: a flat tensor list and a text that says what is in it.

A schema knows no dataclass, so each matrix (or stack of experts) becomes its tensors, in
the order of its class in formats.py, and one word: bf16, f32, nvfp4 or fp8:128x128 (the block).
Keeps true: unpack gives back what pack took; a weight is neither copied nor converted.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphs.formats import Bf16Experts, ExpertMatrix, Fp8Experts, Nvfp4Experts

_PLAIN = {torch.bfloat16: "bf16", torch.float32: "f32"}
_KINDS = {"bf16": Bf16Experts, "f32": Bf16Experts, "fp8": Fp8Experts, "nvfp4": Nvfp4Experts}


def pack(matrices: Iterable[Tensor | ExpertMatrix]) -> tuple[list[Tensor], str]:
    """Matrices [O, I] and stacks [E, O, I] as (tensors, words joined by commas)."""
    tensors: list[Tensor] = []
    words = []
    for matrix in matrices:
        if isinstance(matrix, Tensor):
            tensors.append(matrix)
            words.append(_PLAIN[matrix.dtype])
            continue
        values = [getattr(matrix, field.name) for field in dataclasses.fields(matrix)]
        tensors += [value for value in values if isinstance(value, Tensor)]
        words.append(_word(matrix))
    return tensors, ",".join(words)


def unpack(tensors: Sequence[Tensor], spec: str) -> list[ExpertMatrix]:
    """Every matrix of `spec` as a stack; a plain matrix becomes a stack of one."""
    remaining = iter(tensors)
    matrices = []
    for word in spec.split(","):
        name, _, block = word.partition(":")
        kind = _KINDS[name]
        names = [field.name for field in dataclasses.fields(kind) if field.name != "block"]
        values: dict[str, Any] = {field: next(remaining) for field in names}
        if values["weight"].dim() == 2:
            values = {field: value.unsqueeze(0) for field, value in values.items()}
        if block:
            values["block"] = tuple(int(side) for side in block.split("x"))
        matrices.append(kind(**values))
    return matrices


def _word(matrix: ExpertMatrix) -> str:
    if isinstance(matrix, Fp8Experts):
        return f"fp8:{matrix.block[0]}x{matrix.block[1]}"
    return "nvfp4" if isinstance(matrix, Nvfp4Experts) else _PLAIN[matrix.weight.dtype]
