"""Operator fourstep::route: which experts a row takes and with what weights (architecture 3.9).

Keeps true: the router works in float32 whatever the activation dtype; the bias takes part in the
choice only; a tie goes to the lower id; a row that is not valid chooses nothing.
"""

import torch
from torch import Tensor

from graphs.layers.activation import sigmoid
from graphs.ops.library import define
from graphs.ops.linear import product


def route_reference(
    h_TH: Tensor, router_EH: Tensor, bias_E: Tensor, valid_T: Tensor, topk: int, scale: float
) -> tuple[Tensor, Tensor]:
    """ids int64 [T, K] and weights f32 [T, K], by falling score; -1 and 0 in rows not valid.

    The weights are the unbiased sigmoids, normalised over the chosen, times `scale`.
    """
    p_TE = sigmoid(product(h_TH.float(), router_EH))
    order_TE = (p_TE + bias_E).sort(dim=-1, descending=True, stable=True).indices
    ids_TK = order_TE[:, :topk]
    p_TK = p_TE.gather(1, ids_TK)
    weights_TK = p_TK / p_TK.sum(-1, keepdim=True) * scale
    valid = valid_T[:, None]
    return torch.where(valid, ids_TK, -1), torch.where(valid, weights_TK, 0.0)


def _fake(
    h_TH: Tensor, router_EH: Tensor, bias_E: Tensor, valid_T: Tensor, topk: int, scale: float
) -> tuple[Tensor, Tensor]:
    shape = (h_TH.shape[0], topk)
    return valid_T.new_empty(shape, dtype=torch.int64), bias_E.new_empty(shape)


route = define(
    "route(Tensor h, Tensor router, Tensor bias, Tensor valid, int topk, float scale)"
    " -> (Tensor, Tensor)",
    route_reference,
    _fake,
)
