"""The shipped checkpoint end to end: speculation changes no token of real text, and pays.

Exact equalities on trained weights, where probabilities are far from uniform, and a floor on
acceptance: a chain that reads the wrong hidden state still runs, and drafts badly (fault A8).
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from graphs.checkpoint import Checkpoint
from graphs.plan import EnginePlan
from runtime.chat import Chat, ChatTemplate
from runtime.engine import Engine, Precision
from runtime.generate import generate
from runtime.numbers import summarise
from runtime.request import SamplingParams, Step
from runtime.tokenizer import Tokenizer

NANO = Path(__file__).parents[2] / "models" / "step5-nano"
LIBRARY = '''"""Read and write lines of text files."""

import os


def read_lines(path):
    """Return the lines of a file as a list of strings."""
    with open(path, encoding="utf-8") as file:
'''
SAMPLED = SamplingParams(
    max_tokens=48, temperature=0.8, top_p=0.95, min_p=0.02, seed=2**63 + 1, ignore_eos=True
)
GREEDY = SamplingParams(max_tokens=48, ignore_eos=True)


@cache
def checkpoint() -> Checkpoint:
    return Checkpoint.open(NANO)


@cache
def tokenizer() -> Tokenizer:
    config = checkpoint().config
    return Tokenizer.open(NANO, vocab_size=config.vocab_size, bos_id=config.bos_id)


@cache
def engine(draft_tokens: int, precision: Precision = "bf16", chunk: int = 64) -> Engine:
    return Engine(
        *(checkpoint().config, checkpoint().load()),
        precision=precision,
        draft_tokens=draft_tokens,
        plan=EnginePlan(batches=(1,), prefill=(chunk,)),
        context=512,
    )


def chat_prompt(text: str) -> list[int]:
    special_tokens = {"bos_token": tokenizer().bos_token}
    template = ChatTemplate.open(NANO, special_tokens=special_tokens)
    return tokenizer().encode(template.render(Chat(messages=({"role": "user", "content": text},))))


def run(made: Engine, prompt: Sequence[int], params: SamplingParams) -> list[Step]:
    return list(generate(made, prompt, params))


def tokens(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "seeded"])
def test_tokens_do_not_depend_on_k(precision: Precision, params: SamplingParams) -> None:
    prompt = tokenizer().encode(LIBRARY)
    plain = tokens(run(engine(0, precision), prompt, params))
    for draft_tokens in (1, 2, 3):
        assert tokens(run(engine(draft_tokens, precision), prompt, params)) == plain


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_tokens_and_drafts_do_not_depend_on_chunks(chunk: int) -> None:
    prompt = tokenizer().encode(LIBRARY * 3)  # beyond 16 regions: selection decides what is read
    assert len(prompt) > 17 * 8
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    assert run(engine(3, chunk=chunk), prompt, params) == run(engine(3), prompt, params)


def test_drafts_are_good_on_library_text() -> None:
    summary = summarise(0, run(engine(3), tokenizer().encode(LIBRARY), GREEDY))
    assert summary.tokens_per_step > 2
    assert summary.acceptance_by_position[0] > 0.5


def test_a_chat_makes_sense() -> None:
    steps = run(engine(3), chat_prompt("What is fourstep?"), SamplingParams(max_tokens=80))
    text = tokenizer().decode(tokens(steps))
    thinking, _, answer = text.partition("</think>")
    assert steps[-1].finish_reason == "stop"
    assert thinking
    assert "Step-5" in answer
    assert summarise(0, steps).tokens_per_step > 2.5
