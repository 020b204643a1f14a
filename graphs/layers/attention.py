"""Self-attention over paged keys: sliding, region-sparse and (for the relatives) dense.

Knows architecture 3.3 to 3.7 and 4.4. Every kind gathers, for each row, a fixed number of key
positions with a mask and then runs the same `attend`. Keeps true: a row's result depends on its own
keys alone, in one fixed order of summation.
"""

import torch
from torch import Tensor

from graphs.config import LayerConfig, ModelConfig
from graphs.layers.activation import sigmoid
from graphs.layers.indexer import select_regions, update_summaries
from graphs.layers.linear import linear
from graphs.layers.norm import rms_norm
from graphs.layers.rope import apply_rope, inverse_frequencies, rope_table
from graphs.state import BLOCK, IndexerState, KvPool, Rows, physical, write_kv
from graphs.weights import AttentionWeights


def attention(
    h_TH: Tensor,
    rows: Rows,
    weights: AttentionWeights,
    pool: KvPool,
    indexer: IndexerState | None,
    table: Tensor,
    config: ModelConfig,
    layer: LayerConfig,
) -> Tensor:
    """Write this call's keys and values, attend, gate, project: [T, H] -> [T, H] in h's dtype."""
    q_TND, k_TGD, v_TGD = _project_qkv(h_TH, rows, weights, config, layer)
    write_kv(pool, table, rows, k_TGD, v_TGD)
    if layer.window is not None:
        positions_TGL, visible_TGL = _window(rows, layer)
    elif indexer is not None and weights.indexer is not None:
        update_summaries(h_TH, rows, weights.indexer, indexer, table, config, layer)
        chosen = select_regions(h_TH, rows, weights.indexer, indexer, table, config, layer)
        positions_TGL, visible_TGL = _regions(rows, *chosen, config)
        if config.ssmax:
            q_TND = _ssmax(q_TND, rows, weights.indexer.ssmax_s)
    else:
        positions_TGL, visible_TGL = _everything(rows, table, layer)
    keys = _gather(pool.k, table, rows, positions_TGL)
    values = _gather(pool.v, table, rows, positions_TGL)
    o_TND = attend(q_TND, keys, values, visible_TGL)
    gate_TN = sigmoid(linear(h_TH, weights.g)).to(h_TH.dtype)
    gated_TND = (o_TND.float() * gate_TN[..., None].float()).to(h_TH.dtype)
    return linear(gated_TND.flatten(1), weights.o)


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


def _project_qkv(
    h_TH: Tensor,
    rows: Rows,
    weights: AttentionWeights,
    config: ModelConfig,
    layer: LayerConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """q [T, N, D], k and v [T, G, D]: normalised per head and rotated (q, k), in h's dtype."""
    dtype, width = h_TH.dtype, layer.head_dim
    q_TND = linear(h_TH, weights.q).unflatten(-1, (layer.heads, width))
    k_TGD = linear(h_TH, weights.k).unflatten(-1, (layer.kv_heads, width))
    v_TGD = linear(h_TH, weights.v).unflatten(-1, (layer.kv_heads, width))
    inv = inverse_frequencies(layer.rope_theta, layer.rotary_dim, layer.rope_scaling)
    cos, sin = rope_table(rows.position, inv, dtype)
    q_TND = apply_rope(rms_norm(q_TND, weights.q_norm, config.rms_eps, dtype), cos, sin)
    k_TGD = apply_rope(rms_norm(k_TGD, weights.k_norm, config.rms_eps, dtype), cos, sin)
    return q_TND, k_TGD, v_TGD


def _window(rows: Rows, layer: LayerConfig) -> tuple[Tensor, Tensor]:
    """The `window` positions that end at the row itself, the same for all KV heads."""
    assert layer.window is not None
    back_L = torch.arange(layer.window - 1, -1, -1, device=rows.position.device)
    positions_TL = rows.position[:, None] - back_L
    return _each_head(positions_TL.clamp(min=0), positions_TL >= 0, layer.kv_heads)


def _regions(
    rows: Rows, ids_TGK: Tensor, chosen_TGK: Tensor, config: ModelConfig
) -> tuple[Tensor, Tensor]:
    """The tokens of the chosen regions, then those of the row's own region up to itself."""
    assert config.sparse is not None
    region = config.sparse.region
    token = torch.arange(region, device=ids_TGK.device)
    own_T = rows.position // region
    ids = torch.cat([ids_TGK, own_T[:, None, None].expand(*ids_TGK.shape[:2], 1)], dim=-1)
    chosen = torch.cat([chosen_TGK, torch.ones_like(chosen_TGK[..., :1])], dim=-1)
    positions_TGL = (ids[..., None] * region + token).flatten(2)
    visible_TGL = chosen.repeat_interleave(region, dim=-1)
    return positions_TGL, visible_TGL & (positions_TGL <= rows.position[:, None, None])


def _everything(rows: Rows, table: Tensor, layer: LayerConfig) -> tuple[Tensor, Tensor]:
    """Every position of the context up to the row."""
    context_L = torch.arange(table.shape[1] * BLOCK, device=table.device)
    positions_TL = context_L.expand(rows.position.shape[0], -1)
    return _each_head(positions_TL, positions_TL <= rows.position[:, None], layer.kv_heads)


def _each_head(positions_TL: Tensor, visible_TL: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    shape = (-1, heads, -1)
    return positions_TL[:, None].expand(shape), visible_TL[:, None].expand(shape)


def _gather(cache: Tensor, table: Tensor, rows: Rows, positions_TGL: Tensor) -> Tensor:
    """[T, G, L, D]: each KV head's own positions from the paged cache [B, BLOCK, G, D]."""
    block, offset = physical(table, rows.slot[:, None, None], positions_TGL)
    head = torch.arange(cache.shape[2], device=cache.device)[:, None]
    return cache[block, offset, head]


def _ssmax(q_TND: Tensor, rows: Rows, scale_N: Tensor) -> Tensor:
    """The unproven reading of ssmax_s: q * ln(visible tokens) * s per head (architecture 3.6)."""
    visible_T = torch.log((rows.position + 1).float())
    return (q_TND.float() * visible_T[:, None, None] * scale_N[:, None].float()).to(q_TND.dtype)
