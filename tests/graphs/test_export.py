"""The steps are functions that torch.export takes whole: fixed shapes, state mutated in place.

Exported and eager must leave the same outputs and the same bytes of state.
"""

import copy

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from graphs.sampling import Sampling, words
from graphs.step import DecodeStep, PrefillChunk
from tests.graphs.whole import FP32, fresh_state, golden, golden_model


def sampling(temperature: float, rows: int = 1) -> Sampling:
    zero, vocab = torch.zeros(1, dtype=torch.int64), golden_model().config.vocab_size
    return Sampling(
        seed=zero + 11,
        choice=zero,
        temperature=torch.full((1,), temperature),
        top_k=zero + 20,
        top_p=torch.full((1,), 0.9),
        min_p=torch.zeros(1),
        presence=torch.full((1,), 0.5),
        frequency=torch.zeros(1),
        repetition=torch.ones(1),
        flags=zero,
        mask=torch.zeros(rows, words(vocab), dtype=torch.int32),
    )


def leaves(tree: object) -> list[Tensor]:
    found = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [leaf.view(torch.uint8) if leaf.element_size() == 1 else leaf for leaf in found]


def same_after_export(step: torch.nn.Module, inputs: tuple[object, ...]) -> None:
    before = [leaf.clone() for leaf in leaves(inputs[-1])]
    mine, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
    exported = torch.export.export(step, inputs, strict=True)
    with torch.no_grad():
        expected, found = step(*mine), exported.module(check_guards=False)(*theirs)
    for one, other in zip(leaves(expected), leaves(found), strict=True):
        assert torch.equal(one, other)
    changed = 0
    for start, one, other in zip(before, leaves(mine[-1]), leaves(theirs[-1]), strict=True):
        assert torch.equal(one, other)
        changed += not torch.equal(start, one)
    assert changed > 10, "the step must have written its state"


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_decode_step_exports(draft_tokens: int) -> None:
    model = golden_model("nvfp4-packed")
    state = fresh_state(model)
    tokens = golden()["prompt_60"].long()[None, : 1 + draft_tokens]
    asked = sampling(0.7, rows=1 + draft_tokens)
    inputs = (tokens, torch.tensor([0]), torch.tensor([0]), asked, model.weights, state)
    same_after_export(DecodeStep(model.config, draft_tokens, FP32), inputs)


def test_prefill_chunk_exports() -> None:
    model = golden_model()
    tokens = golden()["prompt_60"].long()[: 16 + 3]
    one = [torch.tensor([value]) for value in (13, 13, 0, 0)]
    inputs = (tokens, *one, sampling(0.0), model.weights, fresh_state(model))
    same_after_export(PrefillChunk(model.config, 3, FP32), inputs)
