"""Top logprobs and prompt logprobs: the bits of the step, for every K, and a softmax by hand."""

import math

import pytest
import torch

from graphs.plan import EnginePlan
from runtime.engine import Engine, Precision
from runtime.exchange import Turn
from runtime.logprobs import TokenLogprobs
from runtime.request import SamplingParams
from tests.graphs.whole import golden, golden_model

PLAN = EnginePlan(batches=(2,), prefill=(7, 64))
HOT = SamplingParams(
    temperature=1.2, seed=5, ignore_eos=True, presence_penalty=0.5, logit_bias={7: 3.0}
)


def engine(draft_tokens: int = 3, precision: Precision = "fp32") -> Engine:
    model = golden_model()
    return Engine(
        *(model.config, model.weights),
        precision=precision,
        draft_tokens=draft_tokens,
        plan=PLAN,
        context=256,
        slots=2,
    )


def prompt() -> list[int]:
    return golden()["prompt_60"].tolist()


def run(
    draft_tokens: int, precision: Precision, answer: list[int], top: int
) -> tuple[list[int], list[float], list[TokenLogprobs]]:
    """16 tokens, their logprobs by the steps and afterwards; drafts from `answer`, some wrong."""
    made = engine(draft_tokens, precision)
    committed = made.prefill(prompt(), 1, HOT)
    tokens, own = list(committed.tokens), list(committed.logprobs)
    after = made.top_logprobs(0, committed.tokens, top)
    while len(tokens) < 16:
        place = len(tokens)
        drafts = tuple(answer[place : place + draft_tokens])
        if place % 3 == 0:
            drafts = drafts[:-1] + (383,) * (len(drafts) > 0)
        turn = Turn(slot=1, position=len(prompt()) + place - 1, token=tokens[-1], drafts=drafts)
        beside = Turn(slot=0, position=3, token=9)  # a neighbour in entry 0
        _, committed = made.decode([beside, turn])
        tokens += committed.tokens
        own += committed.logprobs
        after += made.top_logprobs(1, committed.tokens, top)
    return tokens[:16], own[:16], after[:16]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_tokens_logprob_is_the_steps_for_every_k(precision: Precision) -> None:
    """Fault H4: equal bits, accepted drafts included, whatever was drafted."""
    plain = run(0, precision, [], top=3)
    tokens, own, after = plain
    assert [found.token for found in after] == tokens
    assert [found.logprob for found in after] == own
    for draft_tokens in (1, 2, 3):
        assert run(draft_tokens, precision, tokens, top=3) == plain


def test_top_logprobs_are_the_largest_of_the_softmax() -> None:
    made = engine()
    committed = made.prefill(prompt(), 0, HOT)
    [found] = made.top_logprobs(0, committed.tokens, 20)
    [alone] = made.top_logprobs(0, committed.tokens, 0)
    assert (alone.top, alone.logprob) == ((), found.logprob)
    values = [logprob for _, logprob in found.top]
    assert len(set(found.top)) == 20
    assert values == sorted(values, reverse=True)
    [everything] = made.top_logprobs(0, committed.tokens, 384)
    assert everything.top[:20] == found.top
    assert {token for token, _ in everything.top} == set(range(384))
    assert math.isclose(sum(math.exp(logprob) for _, logprob in everything.top), 1, rel_tol=1e-5)
    assert dict(everything.top)[found.token] == found.logprob


def test_equal_logits_rank_by_rising_id() -> None:
    made = engine()
    head = made.weights.head
    kept = head.clone()
    try:
        head[[300, 9, 80]] = head[[5]]
        committed = made.prefill(prompt(), 0, SamplingParams())
        [found] = made.top_logprobs(0, committed.tokens, 384)
        cut = made.top_logprobs(0, committed.tokens, [t for t, _ in found.top].index(5) + 2)
    finally:
        head.copy_(kept)
    ranked = [token for token, _ in found.top]
    at = ranked.index(5)
    assert ranked[at : at + 4] == [5, 9, 80, 300]
    assert [token for token, _ in cut[0].top] == ranked[: at + 2]


@pytest.mark.parametrize("chunk", [7, 64])
def test_prompt_logprobs_do_not_depend_on_chunks(chunk: int) -> None:
    """Each is what decoding that token would have said of it."""
    text = prompt()
    made = engine()
    found: list[TokenLogprobs] = []
    for start in range(0, len(text), chunk):
        made.prefill_chunk(text, start, chunk, 0)
        found += made.prompt_logprobs(text[start + 1 : start + 1 + chunk], 2)
    assert [each.token for each in found] == text[1:]
    other = engine(0)
    for place in (1, 6, 7, 8, 30, 59):
        other.prefill(text[:place], 0, SamplingParams())
        assert other.top_logprobs(0, [text[place]], 2) == [found[place - 1]]


def test_logits_may_be_asked_again_after_a_draft_and_do_not_change_the_state() -> None:
    made, still = engine(), engine()
    first, other = made.prefill(prompt(), 0, HOT), still.prefill(prompt(), 0, HOT)
    before = made.top_logprobs(0, first.tokens, 5)
    assert made.top_logprobs(0, first.tokens, 5) == before
    turn = Turn(slot=0, position=len(prompt()), token=first.tokens[0], drafts=first.drafts)
    assert made.decode([turn]) == still.decode([turn])
    assert first == other
    assert torch.equal(made.state.sampling.counts, still.state.sampling.counts)
