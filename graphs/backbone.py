"""The backbone's parts, top to bottom: embedding, decoder layer, final norm and head.

Knows architecture 3.1. A layer is a pure function of the residual, its weights and its state; the
blocks of a step (blocks.py) run it. Keeps true: the residual is float32 (where the config
says so) and leaves the backbone before the final norm: the MTP chain starts from it.
"""

import torch
from torch import Tensor

from graphs.config import LayerConfig, ModelConfig
from graphs.layers.attention import attention
from graphs.layers.linear import linear
from graphs.layers.mlp import dense_mlp
from graphs.layers.moe import moe_mlp
from graphs.layers.norm import rms_norm
from graphs.layers.rope import Rotary
from graphs.rows import Rows
from graphs.state import IndexerState
from graphs.weights import LayerWeights, MoeWeights


def decoder_layer(
    r_TH: Tensor,
    rows: Rows,
    rotary: Rotary,
    weights: LayerWeights,
    pool: Tensor,
    indexer: IndexerState | None,
    table: Tensor,
    config: ModelConfig,
    layer: LayerConfig,
    act: torch.dtype,
) -> Tensor:
    """Residual [T, H] -> residual [T, H] of one layer; `act` is the activation dtype."""
    h_TH = rms_norm(r_TH, weights.input_norm, config.rms_eps, act)
    mixed_TH = attention(h_TH, rows, rotary, weights.attention, pool, indexer, table, config, layer)
    r_TH = _add(r_TH, mixed_TH, config, act)
    h_TH = rms_norm(r_TH, weights.post_norm, config.rms_eps, act)
    if isinstance(weights.feed_forward, MoeWeights):
        assert config.moe is not None
        limits = (layer.routed_limit, layer.shared_limit)
        out_TH = moe_mlp(h_TH, rows.valid, weights.feed_forward, config.moe, limits)
    else:
        out_TH = dense_mlp(h_TH, weights.feed_forward, layer.shared_limit)
    return _add(r_TH, out_TH, config, act)


def embed(ids_T: Tensor, embed_VH: Tensor) -> Tensor:
    """Token embeddings as the float32 residual [T, H]."""
    return embed_VH[ids_T].float()


def head(
    r_TH: Tensor, norm_H: Tensor, head_VH: Tensor, config: ModelConfig, act: torch.dtype
) -> Tensor:
    """Logits f32 [T, V]: the residual is rounded to `act` before the norm (architecture 3.1)."""
    return linear(rms_norm(r_TH.to(act), norm_H, config.rms_eps, act), head_VH).float()


def _add(r_TH: Tensor, out_TH: Tensor, config: ModelConfig, act: torch.dtype) -> Tensor:
    """The residual stays float32; only relatives without fp32_residual_connection round it."""
    total = r_TH + out_TH.float()
    return total if config.fp32_residual else total.to(act).float()
