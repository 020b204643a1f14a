"""Operator fourstep::routed_experts: the chosen experts of each row, weighted and summed.

Which experts a step reads depends on tensor values, so this is an operator and not a traced loop.
Keeps true: every distinct expert is read once a call, a row with ids -1 (padding) picks none and
gets zeros, and a row's bits do not depend on the others (linear.py).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from graphs.layers.activation import swiglu
from graphs.ops.library import define
from graphs.ops.linear import product
from graphs.ops.matrices import pack, unpack
from graphs.weights import MoeWeights


def routed_experts(
    h_TH: Tensor, ids_TK: Tensor, weights_TK: Tensor, moe: MoeWeights, limit: float | None
) -> Tensor:
    """sum_k weights[t, k] * E_ids[t, k](h[t]) -> [T, H] in h's dtype (architecture 3.8, 3.9).

    ids int64, -1 for none; weights f32. Expert outputs are in h's dtype, the sum is float32 in the
    order of k and is rounded once.
    """
    tensors, spec = pack((moe.gate, moe.up, moe.down))
    return _operator(h_TH, ids_TK, weights_TK, tensors, spec, limit or 0.0)


def routed_experts_reference(
    h_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    tensors: Sequence[Tensor],
    spec: str,
    limit: float,
) -> Tensor:
    """The operator in torch: `tensors` and `spec` hold gate, up and down; limit 0: no clamp."""
    gate, up, down = unpack(tensors, spec)
    y_TKH = h_TH.new_zeros(*ids_TK.shape, h_TH.shape[1])
    for expert in ids_TK.unique().tolist():
        if expert < 0:
            continue
        row, choice = torch.where(ids_TK == expert)
        x = h_TH[row]
        gate_out, up_out = product(x, gate.dequantise(expert)), product(x, up.dequantise(expert))
        act = swiglu(gate_out, up_out, limit or None)
        y_TKH[row, choice] = product(act, down.dequantise(expert))
    total = torch.zeros_like(h_TH, dtype=torch.float32)
    for choice in range(ids_TK.shape[1]):
        total += weights_TK[:, choice, None] * y_TKH[:, choice].float()
    return total.to(h_TH.dtype)


def _fake(
    h_TH: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    tensors: Sequence[Tensor],
    spec: str,
    limit: float,
) -> Tensor:
    return torch.empty_like(h_TH)


_operator = define(
    "routed_experts(Tensor h, Tensor ids, Tensor weights, Tensor[] tensors, str spec, float limit)"
    " -> Tensor",
    routed_experts_reference,
    _fake,
)
