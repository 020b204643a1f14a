"""Sigmoid, SiLU and the clamped SwiGLU (architecture 3.7, 3.8), in float32.

torch's own sigmoid and silu give the last elements of a tensor, those after its vector loop, other
bits than the rest, so a row would depend on how many rows follow it. Built from exp they do not.
"""

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x) in float32."""
    return 1 / (1 + torch.exp(-x.float()))


def swiglu(gate: Tensor, up: Tensor, limit: float | None) -> Tensor:
    """min(silu(gate), limit) * clamp(up, -limit, limit), in float32, rounded once to gate's dtype.

    silu comes before the clamp, and the gate has no lower clamp. `limit` None: no clamp at all.
    """
    a, b = gate.float() * sigmoid(gate), up.float()
    if limit is not None:
        a, b = torch.clamp(a, max=limit), torch.clamp(b, -limit, limit)
    return (a * b).to(gate.dtype)
