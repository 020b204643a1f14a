"""Self-attention over paged keys: sliding, region-sparse and (for the relatives) dense.

Binds a layer's weights and state to the operators (ops/rotary.py, ops/attention.py) in the order of
architecture 3.3 to 3.7 and 4.4. Keeps true: everything that reads the normed input is one product,
and this call's keys and summaries are written before any row attends.
"""

import torch
from torch import Tensor

from graphs.config import LayerConfig, ModelConfig
from graphs.layers.indexer import BF16, choose_regions, index_keys
from graphs.layers.linear import linear, linears
from graphs.layers.rope import Rotary
from graphs.ops.attention import region_attention, window_attention
from graphs.ops.rotary import rope_write
from graphs.rows import Rows
from graphs.state import IndexerState
from graphs.weights import AttentionWeights


def attention(
    h_TH: Tensor,
    rows: Rows,
    rotary: Rotary,
    weights: AttentionWeights,
    pool: Tensor,
    indexer: IndexerState | None,
    table: Tensor,
    config: ModelConfig,
    layer: LayerConfig,
) -> Tensor:
    """Write this call's keys and values, attend, gate, project: [T, H] -> [T, H] in h's dtype."""
    qkv_TC, gate_TN, kz_TP = _project(h_TH, weights, layer)
    q_TND = rope_write(
        *(qkv_TC, weights.q_norm, weights.k_norm, rotary.attention),
        *(rows.slot, rows.position, table, pool, layer.heads, config.rms_eps),
    )
    places = pool, rows.slot, rows.position, table
    if layer.window is None and indexer is not None and weights.indexer is not None:
        assert config.sparse is not None
        here = rows, rotary, weights.indexer, indexer, table, config.sparse, config.rms_eps
        index_keys(kz_TP, *here)
        ids_TGK = choose_regions(h_TH, *here)
        if config.ssmax:
            q_TND = _ssmax(q_TND, rows, weights.indexer.ssmax_s)
        o_TC = region_attention(q_TND, gate_TN, *places, ids_TGK, config.sparse.region)
    else:
        o_TC = window_attention(q_TND, gate_TN, *places, layer.window or 0)
    return linear(o_TC, weights.o)


def _project(
    h_TH: Tensor, weights: AttentionWeights, layer: LayerConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v side by side; the gate [T, N]; the indexer's key and weight logits [T, 2P], if
    any."""
    matrices = [weights.q, weights.k, weights.v, weights.g]
    if weights.indexer is not None:
        matrices += [weights.indexer.k.to(BF16), weights.indexer.z.to(BF16)]
    out_TC = linears(h_TH, matrices)
    qkv = (layer.heads + 2 * layer.kv_heads) * layer.head_dim
    sizes = [qkv, layer.heads, out_TC.shape[1] - qkv - layer.heads]
    qkv_TC, gate_TN, kz_TP = out_TC.split(sizes, dim=1)
    return qkv_TC, gate_TN, kz_TP


def _ssmax(q_TND: Tensor, rows: Rows, scale_N: Tensor) -> Tensor:
    """The unproven reading of ssmax_s: q * ln(visible tokens) * s per head (architecture 3.6)."""
    visible_T = torch.log((rows.position + 1).float())
    return (q_TND.float() * visible_T[:, None, None] * scale_N[:, None].float()).to(q_TND.dtype)
