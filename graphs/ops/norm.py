"""Operator fourstep::rms_norm: statistics in float32, one rounding at the end (architecture 3.2).

The reference is a plain function of torch, so what trains a model differentiates it. Keeps true:
a row is normalised by a fixed sequence of operations, whatever rows are beside it.
"""

import torch
from torch import Tensor

from graphs.ops.library import define


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x * (mean(x^2) + eps)^(-1/2) * (1 + weight) over the last axis: the weight is zero-
    centred."""
    x = x.float()
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * scale * (1 + weight.float())).to(dtype)


def _fake(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


rms_norm = define(
    "rms_norm(Tensor x, Tensor weight, float eps, ScalarType dtype) -> Tensor",
    rms_norm_reference,
    _fake,
)
