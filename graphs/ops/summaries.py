"""Operator fourstep::update_summaries: raw indexer rows to the ring, whole regions to summaries.

Knows architecture 4.1 (keys), 4.2 and 4.5. Its roundings (bf16 norm, rope and ring; e4m3 summary)
are part of the model in both precisions. Keeps true: a summary is a pure function of its region's
tokens, however they were split into calls; the ring is read before this call's rows overwrite it.

Legend: T rows, P proxy_dim, R tokens a region, C ring rows, S slots, B blocks.
"""

import torch
from torch import Tensor

from graphs.formats import to_e4m3
from graphs.layers.norm import layer_norm
from graphs.ops.library import define
from graphs.ops.rotary import rotate
from graphs.state import SCRATCH_BLOCK, physical

BF16 = torch.bfloat16


def summarise(k_TRP: Tensor, z_TRP: Tensor) -> Tensor:
    """Per-dimension softmax(z)-weighted mean of a region's keys -> e4m3 [T, P] (architecture 4.2).

    Sums run token by token in float32, then bf16, then e4m3: two roundings.
    """
    k, z = k_TRP.float(), z_TRP.float()
    weight = torch.exp(z - z.amax(dim=1, keepdim=True))
    total, norm = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
    for token in range(k.shape[1]):
        total = total + weight[:, token] * k[:, token]
        norm = norm + weight[:, token]
    return to_e4m3((total / norm).to(BF16))


def _update_summaries(
    kz: Tensor,
    k_norm: Tensor,
    k_bias: Tensor,
    rotary: Tensor,
    slot: Tensor,
    position: Tensor,
    table: Tensor,
    summary: Tensor,
    ring_k: Tensor,
    ring_z: Tensor,
    region: int,
    eps: float,
) -> None:
    k_TP, z_TP = kz.chunk(2, dim=1)
    k_TP = layer_norm(k_TP, k_norm.to(BF16), k_bias.to(BF16), eps, BF16)
    k_TP = rotate(k_TP[:, None], rotary)[:, 0]
    summary_TP = summarise(
        _last_region(k_TP, slot, position, ring_k, region),
        _last_region(z_TP, slot, position, ring_z, region),
    )
    block, offset = physical(table, slot, position)
    # Rows that close no region write to the scratch block.
    block = torch.where(position % region == region - 1, block, SCRATCH_BLOCK)
    place = (block, offset // region)
    summary.view(torch.uint8).index_put_(place, summary_TP.view(torch.uint8))
    _write_ring(ring_k, k_TP, slot, position)
    _write_ring(ring_z, z_TP, slot, position)


def _last_region(x_TP: Tensor, slot: Tensor, position: Tensor, ring: Tensor, region: int) -> Tensor:
    """The `region` raw rows that end at each row, [T, R, P]: from this call or else the ring."""
    back_R = torch.arange(region - 1, -1, -1, device=x_TP.device)
    source_TR = torch.arange(x_TP.shape[0], device=x_TP.device)[:, None] - back_R
    wanted_TR = (position[:, None] - back_R).clamp(min=0)
    inside_TR = source_TR.clamp(min=0)
    same_slot_TR = slot[inside_TR] == slot[:, None]
    in_call_TR = (source_TR >= 0) & same_slot_TR & (position[inside_TR] == wanted_TR)
    old_TRP = ring[slot[:, None], wanted_TR % ring.shape[1]]
    return torch.where(in_call_TR[..., None], x_TP[inside_TR], old_TRP)


def _write_ring(ring: Tensor, x_TP: Tensor, slot: Tensor, position: Tensor) -> None:
    """A row that a later one of this call would overwrite goes to the scratch slot instead."""
    scratch, length = ring.shape[0] - 1, ring.shape[1]
    if slot.shape[0] > length:
        later = torch.cat([slot[length:], torch.full_like(slot[:length], scratch)])
        slot = torch.where(later == slot, scratch, slot)
    ring.index_put_((slot, position % length), x_TP)


def _fake(*_: object) -> None:
    return None


# kz bf16 [T, 2P] as projected: key, then weight logit; k_norm and k_bias [P] are used as bf16,
# rotary bf16-rounded f32 [T, rope_dim]. Writes summary e4m3 [B, 64/R, P] of each region that a row
# closes, and ring_k, ring_z bf16 [S+1, C, P]. All rows of a call are written before any is scored,
# so a region that an earlier row of a verify window closes is a candidate for the later ones.
update_summaries = define(
    "update_summaries(Tensor kz, Tensor k_norm, Tensor k_bias, Tensor rotary, Tensor slot, "
    "Tensor position, Tensor table, Tensor(a!) summary, Tensor(b!) ring_k, Tensor(c!) ring_z, "
    "int region, float eps) -> ()",
    _update_summaries,
    _fake,
)
