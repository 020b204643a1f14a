"""Operators on rotated heads: the table of cosines and sines, and q, k, v from projection to pools.

Knows architecture 3.3 and 3.4: angles are float32 products of position and frequency, only cos and
sin are rounded, halves layout on the leading dims of a head. Does not know where frequencies come
from (layers/rope.py). Keeps true: a key is stored as the row that owns it would read it; padding
rows write to the scratch block alone.

Legend: T rows, N query heads, G KV heads, D head_dim, B blocks.
"""

import torch
from torch import Tensor

from graphs.ops.library import define
from graphs.ops.norm import rms_norm_reference
from graphs.state import physical, write_pool


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


def rotate(x_TND: Tensor, rotary: Tensor) -> Tensor:
    """apply_rope with the cosines and sines of one rotary_table."""
    cos, sin = rotary.chunk(2, dim=-1)
    return apply_rope(x_TND, cos, sin)


def _rotary_table(position: Tensor, inv: Tensor, rounding: torch.dtype) -> Tensor:
    return torch.cat(rope_table(position, inv, rounding), dim=-1).float()


def _rotary_table_fake(position: Tensor, inv: Tensor, rounding: torch.dtype) -> Tensor:
    return inv.new_empty(position.shape[0], 2 * inv.shape[0], device=position.device)


def _rope_write(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    rotary: Tensor,
    slot: Tensor,
    position: Tensor,
    table: Tensor,
    pool: Tensor,
    heads: int,
    eps: float,
) -> Tensor:
    groups, width = pool.shape[1], pool.shape[-1]
    used = qkv[:, : (heads + 2 * groups) * width].unflatten(1, (-1, width))
    q_TND, k_TGD, v_TGD = used.split([heads, groups, groups], dim=1)
    k_TGD = rotate(rms_norm_reference(k_TGD, k_norm, eps, qkv.dtype), rotary)
    write_pool(pool, physical(table, slot, position), k_TGD, v_TGD)
    return rotate(rms_norm_reference(q_TND, q_norm, eps, qkv.dtype), rotary)


def _rope_write_fake(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    rotary: Tensor,
    slot: Tensor,
    position: Tensor,
    table: Tensor,
    pool: Tensor,
    heads: int,
    eps: float,
) -> Tensor:
    return qkv.new_empty(qkv.shape[0], heads, pool.shape[-1])


# position int64 [T], inv f32 [rotary_dim/2] -> f32 [T, rotary_dim]: cosines, then sines, of the
# float32 angles, rounded to `rounding` and widened again. One table serves every layer of a kind.
rotary_table = define(
    "rotary_table(Tensor position, Tensor inv, ScalarType rounding) -> Tensor",
    _rotary_table,
    _rotary_table_fake,
)

# qkv [T, (N+2G)*D or more] in the activation dtype: q, k, v as projected; columns after them are
# ignored. Norms q and k per head (f32 [D], zero-centred), rotates them, stores k and v in the pool
# and returns q [T, N, D].
rope_write = define(
    "rope_write(Tensor qkv, Tensor q_norm, Tensor k_norm, Tensor rotary, Tensor slot, "
    "Tensor position, Tensor table, Tensor(a!) pool, int heads, float eps) -> Tensor",
    _rope_write,
    _rope_write_fake,
)
