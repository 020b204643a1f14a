"""Sigmoid router, routed experts and the shared expert (architecture 3.8, 3.9)."""

import torch
from torch import Tensor

from graphs.config import MoeConfig
from graphs.layers.mlp import dense_mlp
from graphs.ops import route as operator
from graphs.ops.routed_experts import routed_experts
from graphs.weights import MoeWeights


def route(
    h_TH: Tensor, weights: MoeWeights, config: MoeConfig, valid_T: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The K experts of each row: ids int64 [T, K] and weights f32 [T, K], by falling score.

    The bias takes part in the choice only; a tie goes to the lower id. The weights are the unbiased
    sigmoids, normalised over the chosen and scaled. Rows that are not valid (padding) get ids -1.
    """
    if valid_T is None:
        valid_T = torch.ones(h_TH.shape[0], dtype=torch.bool, device=h_TH.device)
    router, bias = weights.router, weights.router_bias
    return operator.route(h_TH, router, bias, valid_T, config.topk, config.routed_scale)


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
    ids_TK, weights_TK = route(h_TH, weights, config, valid_T)
    routed_TH = routed_experts(h_TH, ids_TK, weights_TK, weights, limits[0])
    return routed_TH.float() + dense_mlp(h_TH, weights.shared, limits[1]).float()
