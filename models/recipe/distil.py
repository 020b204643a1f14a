"""The distil stage: the MTP layers learn to say what the frozen, quantised backbone will say.

Knows the chain (architecture 5.1) on true tokens and the loss, half KL to the backbone's
distribution, half cross entropy to its argmax. Keeps true: the backbone does not change.

Legend: B batch, T sequence, V vocabulary.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from models.recipe.evaluate import Evaluator, following_tokens
from models.recipe.loop import Inputs, Phase
from models.recipe.model import Model
from models.recipe.recipe import Recipe, Schedule
from models.recipe.trunk import trunk_names


def start_from_trunk(model: Model) -> None:
    """Give every MTP head the backbone's head and final norm to start with."""
    pairs = {"norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    with torch.no_grad():
        for layer in filter(model.dims.is_mtp, model.dims.all_layers):
            for own, theirs in pairs.items():
                name = f"model.layers.{layer}.transformer.shared_head.{own}"
                model.parameters[name].copy_(model.parameters[theirs])


def draft_loss(draft_BTV: Tensor, target_BTV: Tensor, weights_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean loss of draft logits against the backbone's, and the share of equal argmax."""
    log_q = torch.log_softmax(draft_BTV.float(), -1)
    log_p = torch.log_softmax(target_BTV.float(), -1)
    best = target_BTV.argmax(-1)
    kl = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    ce = -log_q.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    total = weights_BT.sum()
    loss = ((0.5 * kl + 0.5 * ce) * weights_BT).sum() / total
    agree = ((draft_BTV.argmax(-1) == best) * weights_BT).sum() / total
    return loss, agree


class DistilStage:
    """Trains the MTP layers only."""

    name = "distil"

    def __init__(self, model: Model, recipe: Recipe, evaluator: Evaluator) -> None:
        self.model, self.evaluator = model, evaluator
        self.schedule: Schedule = recipe.distil
        frozen = set(trunk_names(model))
        for name in frozen:
            model.parameters[name].requires_grad_(False)
        self.parameters: Mapping[str, Tensor] = {
            n: p for n, p in model.parameters.items() if n not in frozen
        }
        self.constants: Mapping[str, Tensor] = {}
        depths = range(1, model.dims.mtp_layers + 1)
        self.metric_names = ("loss", *(f"agree{depth}" for depth in depths))

    def phase(self, step: int) -> Phase:
        del step
        return (True,)

    def loss(self, inputs: Inputs, phase: Phase) -> tuple[Tensor, Tensor]:
        place = self.model.place(inputs.starts)
        with torch.no_grad():
            trunk = self.model.trunk(inputs.tokens[:, :-1], place, sparse=phase[0])
        depths = self.model.dims.mtp_layers
        drafts = self.model.mtp(trunk.residual, following_tokens(inputs.tokens, depths), place)
        losses, agreements = [], []
        for depth, draft in enumerate(drafts):
            ahead = depth + 1
            same = inputs.starts[:, ahead:] == inputs.starts[:, :-ahead]
            weights = inputs.weights[:, ahead:] * same
            loss, agree = draft_loss(draft[:, :-ahead], trunk.logits[:, ahead:], weights)
            losses.append(loss)
            agreements.append(agree)
        total = torch.stack(losses).mean()
        return total, torch.stack([total.detach(), *agreements])

    def after_step(self) -> None:
        """Nothing moves outside the gradient."""

    def evaluate(self) -> dict[str, float]:
        return self.evaluator.draft_scores(self.model)
