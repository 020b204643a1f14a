"""Operator fourstep::routed_experts: the chosen experts of each row, weighted and summed.

Which experts a step reads depends on tensor values, so this is an operator with a schema and not a
traced loop; what is here is its torch reference. Weights arrive as flat tensors because a schema
knows no dataclass. Keeps true: every distinct expert is decoded once a call, a row with ids -1
(padding) picks none and gets zeros, and a row's bits do not depend on the others (linear.py).
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from graphs.formats import Bf16Experts, ExpertMatrix, Fp8Experts, Nvfp4Experts
from graphs.layers.activation import swiglu
from graphs.layers.linear import linear
from graphs.weights import MoeWeights

_KINDS = {cls.__name__: cls for cls in (Bf16Experts, Fp8Experts, Nvfp4Experts)}


def routed_experts(
    h_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor, moe: MoeWeights, limit: float | None
) -> Tensor:
    """sum_k weights[t, k] * E_ids[t, k](h[t]) -> [T, H] in h's dtype (architecture 3.8, 3.9).

    ids int64, -1 for none; weights f32. Expert outputs are in h's dtype, the sum is float32 in the
    order of k and is rounded once.
    """
    tensors, spec = _flatten(moe)
    return _routed_experts(h_TH, ids_TK, weights_TK, tensors, spec, limit or 0.0)


@torch.library.custom_op("fourstep::routed_experts", mutates_args=())
def _routed_experts(
    h_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    tensors: list[Tensor],
    spec: str,
    limit: float,
) -> Tensor:
    gate, up, down = _unflatten(tensors, spec)
    y_TKH = h_TH.new_zeros(*ids_TK.shape, h_TH.shape[1])
    for expert in ids_TK.unique().tolist():
        if expert < 0:
            continue
        row, choice = torch.where(ids_TK == expert)
        x = h_TH[row]
        gate_out, up_out = linear(x, gate.dequantise(expert)), linear(x, up.dequantise(expert))
        act = swiglu(gate_out, up_out, limit or None)
        y_TKH[row, choice] = linear(act, down.dequantise(expert))
    total = torch.zeros_like(h_TH, dtype=torch.float32)
    for choice in range(ids_TK.shape[1]):
        total += weights_TK[:, choice, None] * y_TKH[:, choice].float()
    return total.to(h_TH.dtype)


@_routed_experts.register_fake
def _(
    h_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    tensors: list[Tensor],
    spec: str,
    limit: float,
) -> Tensor:
    return torch.empty_like(h_TH)


def _flatten(moe: MoeWeights) -> tuple[list[Tensor], str]:
    """Gate, up and down as one tensor list, and a text naming class and plain fields of each."""
    tensors: list[Tensor] = []
    spec = []
    for matrix in (moe.gate, moe.up, moe.down):
        values = [getattr(matrix, field.name) for field in dataclasses.fields(matrix)]
        tensors += [value for value in values if isinstance(value, Tensor)]
        block = f":{matrix.block[0]}x{matrix.block[1]}" if isinstance(matrix, Fp8Experts) else ""
        spec.append(type(matrix).__name__ + block)
    return tensors, ",".join(spec)


def _unflatten(tensors: list[Tensor], spec: str) -> list[ExpertMatrix]:
    remaining = iter(tensors)
    matrices = []
    for entry in spec.split(","):
        name, _, block = entry.partition(":")
        kind = _KINDS[name]
        names = [field.name for field in dataclasses.fields(kind) if field.name != "block"]
        values: dict[str, Any] = {field: next(remaining) for field in names}
        if block:
            values["block"] = tuple(int(side) for side in block.split("x"))
        matrices.append(kind(**values))
    return matrices
