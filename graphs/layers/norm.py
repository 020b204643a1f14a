"""RMSNorm and LayerNorm. Statistics in float32, one rounding at the end (architecture 3.2, 4.1)."""

import torch
from torch import Tensor

from graphs.ops import norm as operator


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x * (mean(x^2) + eps)^(-1/2) * (1 + weight) over the last axis: the weight is zero-
    centred."""
    return operator.rms_norm(x, weight, eps, dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """(x - mean) * (var + eps)^(-1/2) * weight + bias: biased variance, the weight used as it
    is."""
    x = x.float()
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (centred * scale * weight.float() + bias.float()).to(dtype)
