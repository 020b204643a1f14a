"""The draft losses and the judge's counts: what is compared with what, and what moves.

Knows a tiny model of random weights; trains it a step at most.
"""

import pytest
import torch
from torch import Tensor

from models.recipe.attention import Place
from models.recipe.dims import Dims
from models.recipe.distil import DistilStage
from models.recipe.drafts import chain_loss, following_tokens
from models.recipe.evaluate import RandomSelection, tokens_a_step
from models.recipe.judge import repeated_share
from models.recipe.loop import Inputs
from models.recipe.model import Model, initial_parameters
from models.recipe.recipe import Recipe

CPU = torch.device("cpu")
TINY = Dims(
    hidden=32, vocabulary=64, layers=4, mtp_layers=2, ff=32, heads=4, head_dim=12,
    full_layers=(3,), moe_layers=(1, 2), experts=4, chosen=2, expert_ff=16, shared_ff=16,
)  # fmt: skip


def tiny_model() -> Model:
    return Model(TINY, initial_parameters(TINY, 0), CPU)


def inputs(length: int = 64) -> Inputs:
    made = torch.randint(3, 64, (2, length + 1), generator=torch.Generator().manual_seed(0))
    return Inputs(
        tokens=made,
        starts=torch.zeros(2, length, dtype=torch.int64),
        weights=torch.ones(2, length),
    )


def test_depth_d_reads_the_token_d_ahead() -> None:
    tokens = torch.arange(10, 16)[None]
    assert following_tokens(tokens, 3)[0].tolist() == [
        [11, 12, 13], [12, 13, 14], [13, 14, 15], [14, 15, 2], [15, 2, 2],
    ]  # fmt: skip


def test_drafts_equal_to_the_backbone_agree_fully() -> None:
    class Constant(Model):
        def mtp(self, residual_BTH: Tensor, next_BTD: Tensor, place: Place) -> list[Tensor]:
            del residual_BTH, next_BTD, place
            return [logits] * 2

    batch = inputs()
    logits = torch.randn(1, 1, 64).expand(2, 64, 64)
    model = Constant(TINY, initial_parameters(TINY, 0), CPU)
    residual = torch.zeros(2, 64, 32)
    chain = chain_loss(model, residual, logits, batch.tokens, batch.starts, batch.weights)
    assert [float(share) for share in chain.agreements] == pytest.approx([1.0, 1.0])
    assert float(chain.pull) == 0.0


def gradients(loss: Tensor, *of: Tensor) -> list[bool]:
    found = torch.autograd.grad(loss, of, allow_unused=True, retain_graph=True)
    return [g is not None and bool(g.abs().sum() > 0) for g in found]


def test_drafts_move_the_residual_and_the_pull_moves_the_logits() -> None:
    model, batch = tiny_model(), inputs()
    residual = torch.randn(2, 64, 32, requires_grad=True)
    logits = torch.randn(2, 64, 64, requires_grad=True)
    chain = chain_loss(model, residual, logits, batch.tokens, batch.starts, batch.weights)
    assert gradients(chain.drafts, residual, logits) == [True, False]
    assert gradients(chain.pull, residual, logits) == [False, True]


def test_distilling_has_no_gradient_into_the_backbone() -> None:
    model = tiny_model()
    stage = DistilStage(model, Recipe(), None)  # pyright: ignore[reportArgumentType]
    moving = {name for name, p in model.parameters.items() if p.requires_grad}
    assert not moving
    for p in stage.parameters.values():
        p.requires_grad_(True)
    loss, _ = stage.loss(inputs(), (True,))
    found = torch.autograd.grad(loss, list(stage.parameters.values()), allow_unused=True)
    assert all(g is not None for g in found)
    assert all(name.startswith(("model.layers.4.", "model.layers.5.")) for name in stage.parameters)


def test_random_selection_shares_the_weights_and_repeats_itself() -> None:
    model, batch = tiny_model(), inputs(192)
    place = model.place(batch.starts)
    logits = [
        RandomSelection(model).trunk(batch.tokens[:, :-1], place, sparse=True).logits
        for _ in range(2)
    ]
    assert torch.equal(*logits)


def test_runs_of_right_drafts_count_up_to_the_first_wrong_one() -> None:
    right = torch.tensor([[[1, 1, 1], [1, 0, 1], [0, 1, 1]]])
    assert tokens_a_step(right, torch.tensor([[1.0, 1.0, 1.0]])) == pytest.approx(1.0 + 4 / 3)
    assert tokens_a_step(right, torch.tensor([[1.0, 0.0, 0.0]])) == 4.0


def test_repeats_are_counted_within_a_text() -> None:
    assert repeated_share([[1, 2, 3, 4], [1, 2, 3, 4]], 2) == 0.0
    assert repeated_share([[1, 2, 1, 2, 1, 2]], 2) == 3 / 5
