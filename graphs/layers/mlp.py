"""Clamped SwiGLU and the dense MLP built on it (architecture 3.8)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.layers.linear import linear
from graphs.weights import DenseWeights


def swiglu(gate: Tensor, up: Tensor, limit: float | None) -> Tensor:
    """min(silu(gate), limit) * clamp(up, -limit, limit), in float32, rounded once to gate's dtype.

    silu comes before the clamp, and the gate has no lower clamp. `limit` None: no clamp at all.
    """
    a, b = F.silu(gate.float()), up.float()
    if limit is not None:
        a, b = torch.clamp(a, max=limit), torch.clamp(b, -limit, limit)
    return (a * b).to(gate.dtype)


def dense_mlp(h_TH: Tensor, weights: DenseWeights, limit: float | None) -> Tensor:
    """[T, H] -> [T, H] in h's dtype."""
    act_TF = swiglu(linear(h_TH, weights.gate), linear(h_TH, weights.up), limit)
    return linear(act_TF, weights.down)
