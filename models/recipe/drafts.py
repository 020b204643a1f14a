"""The MTP chain's losses, for both stages that train it.

Knows the chain on true tokens (architecture 5.1) and its loss: half KL to the backbone's
distribution, half cross entropy to the backbone's argmax; and the pull, the cross entropy of the
backbone to the drafts. Keeps true: depth d at slot i is compared with the backbone at slot
i + d + 1, and only where both slots lie in one segment.

Legend: B batch, T sequence, H hidden, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.recipe.data import PAD_ID
from models.recipe.model import Model


def start_heads_from_trunk(model: Model) -> None:
    """Give every MTP head the backbone's head and final norm to start with."""
    pairs = {"norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    with torch.no_grad():
        for layer in filter(model.dims.is_mtp, model.dims.all_layers):
            for own, theirs in pairs.items():
                name = f"model.layers.{layer}.transformer.shared_head.{own}"
                model.parameters[name].copy_(model.parameters[theirs])


def following_tokens(tokens: Tensor, depths: int) -> Tensor:
    """[B, T + 1] -> [B, T, depths]: token i + 1 + d of each slot i, padding past the end."""
    padded = F.pad(tokens[:, 1:], (0, depths - 1), value=PAD_ID)
    return padded.unfold(1, depths, 1)


@dataclass(frozen=True, kw_only=True)
class ChainLoss:
    """Means over the depths: `drafts` moves the MTP layers (and the residual they read), `pull`
    moves the backbone's distribution; `agreements` is the share of equal argmax by depth."""

    drafts: Tensor
    pull: Tensor
    agreements: list[Tensor]


def chain_loss(
    model: Model,
    residual_BTH: Tensor,
    logits_BTV: Tensor,
    tokens: Tensor,
    starts_BT: Tensor,
    weights_BT: Tensor,
) -> ChainLoss:
    """Losses of the chain. tokens [B, T + 1]; weights_BT as in data.Batch."""
    depths = model.dims.mtp_layers
    following = following_tokens(tokens, depths)
    drafts = model.mtp(residual_BTH, following, model.place(starts_BT))
    log_p = torch.log_softmax(logits_BTV.float(), -1)
    fixed = log_p.detach()
    best_BT = fixed.argmax(-1)
    losses, pulls, agreements = [], [], []
    for ahead, draft in enumerate(drafts, start=1):
        same = starts_BT[:, ahead:] == starts_BT[:, :-ahead]
        weights = weights_BT[:, ahead:] * same
        weights = weights / weights.sum()
        best, target = best_BT[:, ahead:], fixed[:, ahead:]
        log_q = torch.log_softmax(draft[:, :-ahead].float(), -1)
        kl = (target.exp() * (target - log_q)).sum(-1)
        ce = -log_q.gather(-1, best.unsqueeze(-1)).squeeze(-1)
        losses.append(((0.5 * kl + 0.5 * ce) * weights).sum())
        agreements.append(((log_q.detach().argmax(-1) == best) * weights).sum())
        if log_p.requires_grad:
            towards = -(log_q.detach().exp() * log_p[:, ahead:]).sum(-1)
            pulls.append((towards * weights).sum())
    pull = torch.stack(pulls).mean() if pulls else torch.zeros(())
    return ChainLoss(drafts=torch.stack(losses).mean(), pull=pull, agreements=agreements)
