"""Sigmoid router, routed experts and the shared expert (architecture 3.8, 3.9)."""

import torch
from torch import Tensor

from graphs.config import MoeConfig
from graphs.layers.activation import sigmoid
from graphs.layers.linear import linear
from graphs.layers.mlp import dense_mlp
from graphs.ops.routed_experts import routed_experts
from graphs.weights import MoeWeights


def route(h_TH: Tensor, weights: MoeWeights, config: MoeConfig) -> tuple[Tensor, Tensor]:
    """The K experts of each row: ids int64 [T, K] and weights f32 [T, K], by falling score.

    The bias takes part in the choice only; a tie goes to the lower id. The weights are the unbiased
    sigmoids, normalised over the chosen and scaled.
    """
    p_TE = sigmoid(linear(h_TH.float(), weights.router))
    order_TE = (p_TE + weights.router_bias).sort(dim=-1, descending=True, stable=True).indices
    ids_TK = order_TE[:, : config.topk]
    p_TK = p_TE.gather(1, ids_TK)
    return ids_TK, p_TK / p_TK.sum(-1, keepdim=True) * config.routed_scale


def moe_mlp(
    h_TH: Tensor,
    valid_T: Tensor,
    weights: MoeWeights,
    config: MoeConfig,
    limits: tuple[float | None, float | None],
) -> Tensor:
    """[T, H] -> f32 [T, H]: routed + shared, added in float32.

    `limits` are the clamps of the routed experts and of the shared one. Rows that are not valid
    (padding) choose no expert.
    """
    ids_TK, weights_TK = route(h_TH, weights, config)
    ids_TK = torch.where(valid_T[:, None], ids_TK, -1)
    routed_TH = routed_experts(h_TH, ids_TK, weights_TK, weights, limits[0])
    return routed_TH.float() + dense_mlp(h_TH, weights.shared, limits[1]).float()
