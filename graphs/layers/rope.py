"""Rotary position embedding on the leading dims of a head, halves layout (architecture 3.4).

Knows frequencies, the llama3 rule and positions up to 2^20. Keeps true: angles are float32 products
of position and frequency; only cos and sin are rounded to the table dtype, never the frequencies.
"""

import math

import torch
from torch import Tensor

from graphs.config import RopeScaling


def inverse_frequencies(theta: float, rotary_dim: int, scaling: RopeScaling | None) -> Tensor:
    """theta^(-2i/rotary_dim) for i < rotary_dim/2, f32 [rotary_dim/2], rescaled by the llama3
    rule."""
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    inv = 1.0 / torch.pow(torch.tensor(theta, dtype=torch.float32), exponent)
    if scaling is None or scaling.factor == 1.0:
        return inv
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    original = scaling.original_max_positions
    wavelength = 2 * math.pi / inv
    blend = (original / wavelength - low) / (high - low)
    blended = inv * ((1 - blend) / scaling.factor + blend)
    slow = torch.where(wavelength > original / low, inv / scaling.factor, blended)
    return torch.where(wavelength < original / high, inv, slow)


def rope_table(positions_T: Tensor, inv: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, each [T, rotary_dim/2], in `dtype`."""
    angle = positions_T.float()[:, None] * inv.to(positions_T.device)
    return torch.cos(angle).to(dtype), torch.sin(angle).to(dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the leading dims of x [T, heads, D] in float32; the rest passes through. Keeps x's
    dtype.

    cos and sin are [T, rotary_dim/2]; leading axes before T broadcast.
    """
    half = cos.shape[-1]
    c, s = cos.float().unsqueeze(-2), sin.float().unsqueeze(-2)
    first, second, rest = x.float().split([half, half, x.shape[-1] - 2 * half], dim=-1)
    rotated = torch.cat([first * c - second * s, second * c + first * s, rest], dim=-1)
    return rotated.to(x.dtype)
