"""The MTP layers: small decoder layers that each draft one more token (architecture 5).

Depth d reads, at slot i, the token at i+1+d and the hidden state that depth d-1 left at slot i
(depth 0: the backbone's residual before the final norm), and predicts token i+2+d with a head of
its own. Knows one layer; which rows run through it is draft_blocks.py's business.
"""

import torch
from torch import Tensor

from graphs.backbone import decoder_layer, embed
from graphs.config import LayerConfig, ModelConfig
from graphs.layers.linear import linear
from graphs.layers.norm import rms_norm
from graphs.layers.rope import Rotary
from graphs.rows import Rows
from graphs.weights import MtpWeights


def mtp_block(
    r_TH: Tensor,
    ids_T: Tensor,
    embed_VH: Tensor,
    weights: MtpWeights,
    rows: Rows,
    rotary: Rotary,
    pool: Tensor,
    table: Tensor,
    config: ModelConfig,
    layer: LayerConfig,
    act: torch.dtype,
) -> Tensor:
    """Hidden state of depth-1 [T, H] and token ids [T] -> hidden state of this depth, f32 [T, H].

    eh_proj takes the embedding first; both halves are normalised (architecture 5.1).
    """
    e_TH = rms_norm(embed(ids_T, embed_VH), weights.embed_norm, config.rms_eps, act)
    h_TH = rms_norm(r_TH.to(act), weights.hidden_norm, config.rms_eps, act)
    x_TH = linear(torch.cat([e_TH, h_TH], dim=-1), weights.eh_proj).float()
    return decoder_layer(x_TH, rows, rotary, weights.layer, pool, None, table, config, layer, act)
