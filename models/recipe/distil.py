"""The distil stage: the MTP layers learn to say what the frozen, quantised backbone will say.

Knows which tensors move. Keeps true: the backbone does not change.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from models.recipe.drafts import chain_loss
from models.recipe.evaluate import Evaluator
from models.recipe.loop import Inputs, Phase
from models.recipe.model import Model
from models.recipe.recipe import Recipe, Schedule
from models.recipe.trunk import trunk_names


class DistilStage:
    """Trains the MTP layers only."""

    name = "distil"
    stream = 1

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
        chain = chain_loss(
            self.model, trunk.residual, trunk.logits, inputs.tokens, inputs.starts, inputs.weights
        )
        return chain.drafts, torch.stack([chain.drafts.detach(), *chain.agreements])

    def after_step(self) -> None:
        """Nothing moves outside the gradient."""

    def evaluate(self) -> dict[str, float]:
        return self.evaluator.draft_scores(self.model)
