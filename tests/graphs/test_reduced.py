"""The reduced model has every program of the whole one, in every format, and sane values."""

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from graphs.chain import Model, decode_chain, observe_chain, prefill_chain
from graphs.compile.program import OpenDims, task_of
from graphs.compile.reduced import reduce
from graphs.layers.rope import frequencies
from tests.graphs import whole
from tests.graphs.whole import BF16, fresh_state, golden_model, residual

KINDS = ("bf16", "nvfp4-packed", "nvfp4-per-expert", "fp8")


def small(kind: str) -> whole.Model:
    golden = golden_model(kind)
    config, weights = reduce(golden.config, golden.weights)
    return whole.Model(config=config, weights=weights)


def keys(model: whole.Model) -> set[str]:
    """Of a step, a chunk and an observation."""
    made = Model(
        config=model.config,
        act=BF16,
        weights=model.weights,
        state=fresh_state(model, BF16, slots=2),
        frequencies=frequencies(model.config, None),
    )
    decode, prefill = decode_chain(made, 2, 4), prefill_chain(made, 16)
    chains = (decode.verify, decode.draft, prefill.verify, prefill.draft)
    calls = [call for chain in chains for call in chain] + list(observe_chain(made, 16).calls)
    dims = OpenDims(made.state)
    return {task_of(call, dims).key for call in calls}


@pytest.mark.parametrize("kind", KINDS)
def test_every_program_of_the_model_is_one_of_the_reduced(kind: str) -> None:
    assert keys(small(kind)) == keys(golden_model(kind))


def test_it_is_smaller_and_in_order() -> None:
    config, golden = small("bf16").config, golden_model().config
    assert len(config.layers) < len(golden.layers)
    every = (*config.layers, *config.mtp_layers)
    assert [layer.index for layer in every] == list(range(len(every)))
    assert len(config.mtp_layers) == len(golden.mtp_layers)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_random_and_their_results_are_numbers(kind: str) -> None:
    model, golden = small(kind), golden_model(kind)
    drawn = [leaf for leaf in tree_leaves(model.weights) if isinstance(leaf, Tensor)]
    taken = {leaf.data_ptr() for leaf in tree_leaves(golden.weights) if isinstance(leaf, Tensor)}
    assert not taken & {leaf.data_ptr() for leaf in drawn}, "no weight of the model is used"
    ids = torch.arange(20) % model.config.vocab_size
    r_TH = residual(model, ids, BF16)
    assert torch.isfinite(r_TH).all()
    assert r_TH.std() > 0.1
    assert not torch.equal(r_TH[0], r_TH[1])


def test_drawing_is_repeatable() -> None:
    once, twice = (tree_leaves(small("nvfp4-packed").weights) for _ in range(2))
    for one, other in zip(once, twice, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
