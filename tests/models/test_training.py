"""A tiny model through the training loop: resume is bit-equal, both dispatches agree, NVFP4 error.

Knows the loop's contract (weights are a function of recipe, data and step); trains nothing useful.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from graphs.formats import Nvfp4Experts
from models.recipe import experts
from models.recipe.data import ANSWER, ROW, START, Data, batch_at
from models.recipe.dims import Dims
from models.recipe.loop import Loop
from models.recipe.model import Model, initial_parameters
from models.recipe.recipe import Recipe
from models.recipe.trunk import TrunkStage

CPU = torch.device("cpu")
TINY = Dims(
    hidden=32, vocabulary=64, layers=4, mtp_layers=1, ff=32, heads=4, head_dim=12,
    full_layers=(3,), moe_layers=(1, 2), experts=4, chosen=2, expert_ff=16, shared_ff=16,
)  # fmt: skip


class NoScores:
    def trunk_scores(self, model: Model, *, sparse: bool) -> dict[str, float]:
        del model, sparse
        return {}


@pytest.fixture
def data() -> Data:
    rng = np.random.default_rng(0)
    library = rng.integers(3, 64, 4 * ROW).astype(np.uint16)
    chats = rng.integers(3, 64, (4, ROW)).astype(np.uint16)
    chats[:, ::64] |= START
    chats[:, 40::64] |= ANSWER
    return Data(library=library, library_held_out=library, chats=chats, chats_held_out=chats)


def tiny_loop(data: Data, work: Path) -> Loop:
    recipe = Recipe(save_every=1, report_every=2)
    trunk = dataclasses.replace(recipe.trunk, steps=6, rows=2, chat_rows=1)
    recipe = dataclasses.replace(recipe, trunk=trunk)
    model = Model(TINY, initial_parameters(TINY, 0), CPU)
    stage = TrunkStage(model, recipe, NoScores())  # pyright: ignore[reportArgumentType]
    return Loop(stage, data, recipe, work, CPU, capture=False)


def test_resume_is_bit_equal(data: Data, tmp_path: Path) -> None:
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = tiny_loop(data, tmp_path / "whole")
    whole.run()
    tiny_loop(data, tmp_path / "cut").run(until=3)
    resumed = tiny_loop(data, tmp_path / "cut")
    resumed.run()
    assert resumed.step == 6
    assert resumed.curve == whole.curve
    for name, p in whole.stage.parameters.items():
        assert torch.equal(p, resumed.stage.parameters[name]), name


def test_another_recipe_is_refused(data: Data, tmp_path: Path) -> None:
    tiny_loop(data, tmp_path).run(until=1)
    other = tiny_loop(data, tmp_path)
    other.recipe = dataclasses.replace(other.recipe, seed=9)
    with pytest.raises(ValueError, match="another recipe"):
        other.run()


def test_batches_depend_on_seed_and_step_alone(data: Data) -> None:
    first, again = (batch_at(data, 1, 7, 4, 2) for _ in range(2))
    other = batch_at(data, 1, 8, 4, 2)
    assert np.array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, other.tokens)


def test_both_dispatches_agree() -> None:
    torch.manual_seed(0)
    h = torch.randn(24, 32).bfloat16()
    w = tuple(torch.randn(4, *s).bfloat16() * 0.2 for s in ((16, 32), (16, 32), (32, 16)))
    ids, weights = experts.route(h, torch.randn(4, 32), torch.zeros(4), 2, 3.0)
    sorted_, dense = (
        dispatch(h, ids, weights, (w[0], w[1], w[2]), 7.0)
        for dispatch in (experts._by_sorted_loop, experts._by_all_experts)
    )
    torch.testing.assert_close(sorted_, dense, atol=1e-4, rtol=1e-2)


def test_training_rounds_as_the_format_does() -> None:
    torch.manual_seed(0)
    w = torch.randn(3, 8, 32)
    w[1] *= 1e-3
    packed = Nvfp4Experts.quantise(w)
    stored = torch.stack([packed.dequantise(expert) for expert in range(3)])
    rounded = experts.nvfp4_values(w)
    assert torch.equal(rounded, stored)
    blocks = w.unflatten(-1, (-1, 16))
    error = (rounded - w).abs().unflatten(-1, (-1, 16)).amax(-1)
    # half the widest e2m1 gap (4 to 6), and the block scale's own rounding
    assert bool((error <= blocks.abs().amax(-1) * (1 / 6 + 1 / 16)).all())
