"""The promises of test_speculation.py on random models of other shapes: fewer MTP layers, one or
four groups, a window longer than a block, NVFP4 experts."""

from collections.abc import Sequence

import pytest
import torch

from graphs.plan import EnginePlan
from runtime.engine import Engine, Precision
from runtime.generate import generate
from runtime.request import SamplingParams, Step
from tests.graphs.random_model import SHAPES, VOCAB, random_model
from tests.graphs.whole import BF16, FP32, Model, drafts_from_scratch

PARAMS = [
    SamplingParams(max_tokens=60, ignore_eos=True),
    SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, top_k=6, seed=9),
]


def prompt_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, VOCAB, (length,), generator=generator).tolist()


def run(
    model: Model,
    draft_tokens: int,
    params: SamplingParams,
    *,
    precision: Precision = "fp32",
    chunk: int = 64,
    length: int = 33,
) -> list[Step]:
    made = Engine(
        *(model.config, model.weights),
        precision=precision,
        draft_tokens=draft_tokens,
        plan=EnginePlan(batches=(1,), prefill=(chunk,)),
        context=192,
    )
    return list(generate(made, prompt_of(length), params))


def tokens(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "seeded"])
@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_do_not_depend_on_k(
    shape: str, params: SamplingParams, precision: Precision
) -> None:
    model = random_model(shape)
    plain = tokens(run(model, 0, params, precision=precision))
    for draft_tokens in range(1, len(model.config.mtp_layers) + 1):
        steps = run(model, draft_tokens, params, precision=precision)
        assert tokens(steps) == plain
        if params.temperature:
            assert any(step.accepted for step in steps), "nothing accepted: choose another seed"


@pytest.mark.parametrize("chunk", [1, 7, 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_change_neither_tokens_nor_drafts(shape: str, chunk: int) -> None:
    model, depth = random_model(shape, seed=1), len(random_model(shape).config.mtp_layers)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    one = run(model, depth, params, length=100)
    assert run(model, depth, params, chunk=chunk, length=100) == one


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_drafts_equal_those_from_scratch(shape: str, precision: Precision) -> None:
    model = random_model(shape, seed=2)
    depth, dtype = len(model.config.mtp_layers), FP32 if precision == "fp32" else BF16
    params = SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, seed=4)
    first, *steps = run(model, depth, params, precision=precision, length=15)
    committed = prompt_of(15) + list(first.token_ids)
    for step in steps[:-1]:
        expected = drafts_from_scratch(model, torch.tensor(committed), depth, dtype)
        assert list(step.drafted) == expected
        committed += step.token_ids
