"""The align stage: backbone and MTP layers train together, gently, towards one another.

Knows the loss: the next token, the indexers, the drafts (whose gradient reaches the residual that
they read) and the pull of the backbone's distribution towards its drafts. Keeps true: experts are
rounded to NVFP4 and attention is region-sparse throughout, so nothing has to follow this stage; the
router's bias does not move.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from models.recipe.data import ANSWER_WEIGHT
from models.recipe.drafts import chain_loss
from models.recipe.evaluate import Evaluator
from models.recipe.loop import Inputs, Phase
from models.recipe.model import Model, is_constant
from models.recipe.recipe import Recipe, Schedule
from models.recipe.trunk import token_loss


class AlignStage:
    """Trains every tensor that a gradient can move."""

    name = "align"
    stream = 2

    def __init__(self, model: Model, recipe: Recipe, evaluator: Evaluator) -> None:
        self.model, self.recipe, self.evaluator = model, recipe, evaluator
        self.schedule: Schedule = recipe.align
        model.quantised = True
        self.parameters: Mapping[str, Tensor] = {
            n: p for n, p in model.parameters.items() if not is_constant(n)
        }
        self.constants: Mapping[str, Tensor] = {}
        depths = range(1, model.dims.mtp_layers + 1)
        agree = (f"agree{depth}" for depth in depths)
        self.metric_names = ("library", "answers", "indexer", "drafts", "pull", *agree)

    def phase(self, step: int) -> Phase:
        del step
        return (True,)

    def loss(self, inputs: Inputs, phase: Phase) -> tuple[Tensor, Tensor]:
        place = self.model.place(inputs.starts)
        trunk = self.model.trunk(inputs.tokens[:, :-1], place, sparse=phase[0])
        nll = token_loss(trunk.logits, inputs.tokens[:, 1:])
        main = (nll * inputs.weights).sum() / inputs.weights.sum()
        indexer = torch.stack([report.loss for report in trunk.indexers]).mean()
        chain = chain_loss(
            self.model, trunk.residual, trunk.logits, inputs.tokens, inputs.starts, inputs.weights
        )
        recipe = self.recipe
        total = (
            main + indexer + recipe.draft_weight * chain.drafts + recipe.pull_weight * chain.pull
        )
        library = self.schedule.rows - self.schedule.chat_rows
        answers = inputs.weights == ANSWER_WEIGHT
        answer_loss = (nll * answers).sum() / answers.sum()
        parts = [nll[:library].mean(), answer_loss, indexer, chain.drafts, chain.pull]
        return total, torch.stack([part.detach() for part in (*parts, *chain.agreements)])

    def after_step(self) -> None:
        """Nothing moves outside the gradient."""

    def evaluate(self) -> dict[str, float]:
        scores = self.evaluator.trunk_scores(self.model, sparse=True)
        return scores | self.evaluator.draft_scores(self.model)
