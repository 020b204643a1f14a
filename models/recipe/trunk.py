"""The trunk stage: the backbone learns library text and chats; the indexers learn its attention.

Knows the loss and the phases: dense attention first, then region-sparse, then with experts rounded
to NVFP4. Keeps true: expert load is balanced by the router's bias alone, outside the gradient.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from models.recipe.data import ANSWER_WEIGHT
from models.recipe.evaluate import Evaluator
from models.recipe.loop import Inputs, Phase
from models.recipe.model import Model, is_constant
from models.recipe.recipe import Recipe, Schedule


def trunk_names(model: Model) -> list[str]:
    """Names of the backbone's tensors, embedding and head included."""
    mtp = tuple(f"model.layers.{n}." for n in model.dims.all_layers if model.dims.is_mtp(n))
    return [name for name in model.parameters if not name.startswith(mtp)]


class TrunkStage:
    """Trains everything but the MTP layers."""

    name = "trunk"
    stream = 0
    metric_names: tuple[str, ...] = ("library", "answers", "indexer", "recall", "random", "busiest")

    def __init__(self, model: Model, recipe: Recipe, evaluator: Evaluator) -> None:
        self.model, self.recipe, self.evaluator = model, recipe, evaluator
        names = trunk_names(model)
        self.schedule: Schedule = recipe.trunk
        self.parameters: Mapping[str, Tensor] = {
            n: model.parameters[n] for n in names if not is_constant(n)
        }
        biases = [f"model.layers.{n}.moe.router_bias" for n in model.dims.moe_layers]
        self.constants: Mapping[str, Tensor] = {n: model.parameters[n] for n in biases}
        self.load = torch.zeros(len(biases), model.dims.experts, device=model.device)

    def phase(self, step: int) -> Phase:
        share = step / self.schedule.steps
        return share >= self.recipe.sparse_from, share >= self.recipe.quantise_from

    def loss(self, inputs: Inputs, phase: Phase) -> tuple[Tensor, Tensor]:
        sparse, self.model.quantised = phase
        place = self.model.place(inputs.starts)
        trunk = self.model.trunk(inputs.tokens[:, :-1], place, sparse=sparse)
        self.load.copy_(trunk.load)
        nll = token_loss(trunk.logits, inputs.tokens[:, 1:])
        main = (nll * inputs.weights).sum() / inputs.weights.sum()
        reports = trunk.indexers
        indexer = torch.stack([report.loss for report in reports]).mean()
        library = self.schedule.rows - self.schedule.chat_rows
        answers = inputs.weights == ANSWER_WEIGHT
        parts = [
            nll[:library].mean(),
            (nll * answers).sum() / answers.sum(),
            indexer,
            torch.stack([report.recall for report in reports]).mean(),
            torch.stack([report.random for report in reports]).mean(),
            (trunk.load.amax(1) / trunk.load.mean(1)).mean(),
        ]
        return main + indexer, torch.stack([part.detach() for part in parts])

    @torch.no_grad()
    def after_step(self) -> None:
        for bias, load in zip(self.constants.values(), self.load, strict=True):
            bias.add_(torch.sign(load.mean() - load) * self.recipe.bias_rate)

    def evaluate(self) -> dict[str, float]:
        return self.evaluator.trunk_scores(self.model, sparse=True)


def token_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Negative log-likelihood of each target, float32 [B, T]."""
    flat = F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten(), reduction="none")
    return flat.view(targets_BT.shape)
