"""RMSNorm and LayerNorm. Statistics in float32, one rounding at the end (architecture 3.2, 4.1)."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x * (mean(x^2) + eps)^(-1/2) * (1 + weight) over the last axis: the weight is zero-
    centred."""
    x = x.float()
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * scale * (1 + weight.float())).to(dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """(x - mean) * (var + eps)^(-1/2) * weight + bias: biased variance, the weight used as it
    is."""
    x = x.float()
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (centred * scale * weight.float() + bias.float()).to(dtype)
