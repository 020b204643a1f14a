"""Operators of attention over paged keys: a sliding window, or chosen regions.

Knows architecture 3.5, 3.7 and 4.4. Both gather, for each row, a fixed number of key positions with
a mask and then run the same `attend` and gate. Keeps true: a row's result depends on its own keys
alone, in one fixed order of summation.

Legend: T rows, N query heads, G KV heads, D head_dim, L keys a row can see, K chosen regions, B
blocks.
"""

import torch
from torch import Tensor

from graphs.layers.activation import sigmoid
from graphs.ops.library import define
from graphs.state import BLOCK, Place, physical, read_pool


def attend(q_TND: Tensor, k_TGLD: Tensor, v_TGLD: Tensor, visible_TGL: Tensor) -> Tensor:
    """Softmax attention of each row over its own L keys -> [T, N, D] in q's dtype (architecture
    3.5).

    Query head j reads KV head j // (N/G). The unnormalised exponentials are rounded to q's dtype
    for the product with the values; the float32 sum of the unrounded ones divides afterwards.
    """
    groups, width = k_TGLD.shape[1], q_TND.shape[-1]
    q_TGMD = q_TND.float().unflatten(1, (groups, -1))
    logits_TGML = torch.matmul(q_TGMD, k_TGLD.float().transpose(-1, -2)) * width**-0.5
    logits_TGML = logits_TGML.masked_fill(~visible_TGL[:, :, None], -torch.inf)
    e_TGML = torch.exp(logits_TGML - logits_TGML.amax(-1, keepdim=True))
    o_TGMD = torch.matmul(e_TGML.to(q_TND.dtype).float(), v_TGLD.float())
    return (o_TGMD / e_TGML.sum(-1, keepdim=True)).flatten(1, 2).to(q_TND.dtype)


def _window_attention(
    q: Tensor,
    gate: Tensor,
    pool: Tensor,
    slot: Tensor,
    position: Tensor,
    table: Tensor,
    window: int,
) -> Tensor:
    # Without a window the row is masked instead: every position of the table, up to itself.
    if window:
        back_L = torch.arange(window - 1, -1, -1, device=position.device)
        positions_TL = position[:, None] - back_L
    else:
        context_L = torch.arange(table.shape[1] * BLOCK, device=position.device)
        positions_TL = context_L.expand(position.shape[0], -1)
    visible_TL = (positions_TL >= 0) & (positions_TL <= position[:, None])
    shape = (-1, pool.shape[1], -1)
    places = positions_TL.clamp(min=0)[:, None].expand(shape)
    visible_TGL = visible_TL[:, None].expand(shape)
    return _gated(q, gate, pool, physical(table, slot[:, None, None], places), visible_TGL)


def _region_attention(
    q: Tensor,
    gate: Tensor,
    pool: Tensor,
    slot: Tensor,
    position: Tensor,
    table: Tensor,
    ids: Tensor,
    region: int,
) -> Tensor:
    # The tokens of the chosen regions, then those of the row's own region up to itself.
    own_TG1 = (position // region)[:, None, None].expand(*ids.shape[:2], 1)
    ids_TGK = torch.cat([ids, own_TG1], dim=-1)
    token = torch.arange(region, device=ids.device)
    positions_TGL = (ids_TGK.clamp(min=0)[..., None] * region + token).flatten(2)
    visible_TGL = (ids_TGK >= 0).repeat_interleave(region, dim=-1)
    visible_TGL = visible_TGL & (positions_TGL <= position[:, None, None])
    places = physical(table, slot[:, None, None], positions_TGL)
    return _gated(q, gate, pool, places, visible_TGL)


def _gated(
    q_TND: Tensor,
    gate_TN: Tensor,
    pool: Tensor,
    places: Place,
    visible_TGL: Tensor,
) -> Tensor:
    """Attend to the keys at `places`, (block, offset) each [T, G, L]; gate each head: [T, N*D]."""
    head_G1 = torch.arange(pool.shape[1], device=pool.device)[:, None]
    o_TND = attend(q_TND, *read_pool(pool, places, head_G1), visible_TGL)
    open_TN = sigmoid(gate_TN).to(q_TND.dtype)
    return (o_TND.float() * open_TN[..., None].float()).to(q_TND.dtype).flatten(1)


def _fake(q: Tensor, *_: object) -> Tensor:
    return q.new_empty(q.shape[0], q.shape[1] * q.shape[2])


# q [T, N, D], gate [T, N] (as projected, before the sigmoid) and a layer's pool (state.py), all in
# the activation dtype -> [T, N*D]. A row sees the `window` positions that end at itself; window 0:
# every position up to itself.
window_attention = define(
    "window_attention(Tensor q, Tensor gate, Tensor pool, Tensor slot, Tensor position, "
    "Tensor table, int window) -> Tensor",
    _window_attention,
    _fake,
)

# As above; a row sees the tokens of its chosen regions, ids int64 [T, G, K] rising with -1 for
# none, and those of its own region up to itself.
region_attention = define(
    "region_attention(Tensor q, Tensor gate, Tensor pool, Tensor slot, Tensor position, "
    "Tensor table, Tensor ids, int region) -> Tensor",
    _region_attention,
    _fake,
)
