"""Speculation changes no token: K, chunks and batch mates against each other and the golden trace.

Everything here is exact, in float32 and in bf16: the reference path is row-invariant, so a token's
logits have the same bits in any window, chunk or batch (tests/graphs/test_row_invariance.py).
"""

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.plan import EnginePlan
from runtime.engine import Engine, Precision, Turn
from runtime.generate import generate
from runtime.numbers import summarise
from runtime.request import SamplingParams, Step
from tests.graphs.whole import BF16, FP32, drafts_from_scratch, golden, golden_model

GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SEEDED = SamplingParams(
    max_tokens=24, ignore_eos=True, temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, seed=7
)
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


def engine(draft_tokens: int, precision: Precision = "fp32", chunk: int = 64) -> Engine:
    model = golden_model()
    return Engine(
        *(model.config, model.weights),
        precision=precision,
        draft_tokens=draft_tokens,
        plan=EnginePlan(batches=(1,), prefill=(chunk,)),
        context=256,
    )


def run(made: Engine, prompt: Sequence[int], params: SamplingParams) -> list[Step]:
    return list(generate(made, prompt, params))


def tokens(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


def prompt_of(length: int) -> list[int]:
    return golden()[f"prompt_{length}"].tolist()


@pytest.mark.parametrize("length", [5, 60, 150])
@pytest.mark.parametrize("draft_tokens", [0, 1, 2, 3])
def test_greedy_tokens_are_the_golden_ones(length: int, draft_tokens: int) -> None:
    steps = run(engine(draft_tokens), prompt_of(length), GREEDY)
    assert tokens(steps) == golden()[f"greedy_{length}"].tolist()


@pytest.mark.parametrize("length", [5, 60, 150])
def test_drafts_and_acceptance_are_the_golden_trace(length: int) -> None:
    first, *steps = run(engine(3), prompt_of(length), GREEDY)
    assert (first.drafted, first.accepted) == ((), 0)
    full = steps[:-1]  # the last step is cut by max_tokens
    trace = golden()[f"spec_drafts_{length}"].tolist()
    accepted = golden()[f"spec_accepted_{length}"].tolist()
    assert [list(step.drafted) for step in full] == trace[: len(full)]
    assert [step.accepted for step in full] == accepted[: len(full)]
    assert len(steps) == len(trace)
    assert {step.accepted for step in full} >= {0, 1}, "the trace must exercise both"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_tokens_do_not_depend_on_k_or_chunk(precision: Precision, params: SamplingParams) -> None:
    prompt = prompt_of(60)
    expected = tokens(run(engine(0, precision), prompt, params))
    for draft_tokens in (1, 2, 3):
        for chunk in (64, 7):
            found = tokens(run(engine(draft_tokens, precision, chunk), prompt, params))
            assert found == expected, (draft_tokens, chunk)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_prefill_in_chunks_leaves_the_same_state(precision: Precision, chunk: int) -> None:
    """Tokens, drafts and every byte that may still be read (faults F1, F2)."""
    prompt = prompt_of(150)
    whole, parts = engine(3, precision, chunk=64), engine(3, precision, chunk=chunk)
    assert whole.prefill(prompt, 0, SEEDED) == parts.prefill(prompt, 0, SEEDED)
    for layer in (*whole.config.layers, *whole.config.mtp_layers):
        for position in readable(len(prompt), layer.window):
            one, other = (kv_at(made, layer.index, position) for made in (whole, parts))
            assert torch.equal(one, other), (layer.index, position)
    for one, other in zip(whole.state.indexers, parts.state.indexers, strict=True):
        if one is not None and other is not None:
            written = slice(1, 1 + len(prompt) // 64)
            assert torch.equal(one.summary[written].float(), other.summary[written].float())
            recent = [position % 16 for position in range(len(prompt) - 8, len(prompt))]
            assert torch.equal(one.ring_k[0, recent], other.ring_k[0, recent])
            assert torch.equal(one.ring_z[0, recent], other.ring_z[0, recent])
    one, other = whole.state.history, parts.state.history
    assert one is not None
    assert other is not None
    assert torch.equal(one.ids[0], other.ids[0])
    assert torch.equal(one.hidden[0], other.hidden[0])


def readable(length: int, window: int | None) -> range:
    return range(max(0, length - window) if window else 0, length)


def kv_at(made: Engine, layer: int, position: int) -> torch.Tensor:
    full = layer in made.config.full_layers
    table = made.state.full_table if full else made.state.sliding_table
    block, offset = int(table[0, position // 64]), position % 64
    return made.state.layers[layer][block, :, offset // 8, :, offset % 8]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_drafts_equal_those_from_scratch_at_every_step(precision: Precision) -> None:
    """Whatever was accepted before (faults A5, A13): sampling at temperature 1 rejects most
    drafts."""
    params = SamplingParams(max_tokens=18, ignore_eos=True, temperature=0.7, seed=3)
    prompt = prompt_of(60)[:20]
    first, *steps = run(engine(3, precision), prompt, params)
    committed, seen = prompt + list(first.token_ids), set()
    dtype = FP32 if precision == "fp32" else BF16
    for step in steps:
        if step.finish_reason is None:
            expected = drafts_from_scratch(golden_model(), torch.tensor(committed), 3, dtype)
            assert list(step.drafted) == expected
        seen.add(step.accepted)
        committed += step.token_ids
    assert len(seen) > 1, "all steps accepted alike: choose another seed"


@settings(max_examples=12, deadline=None)
@given(
    prompt=st.lists(st.integers(3, 375), min_size=1, max_size=60),
    seed=st.integers(-(2**63), 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.5, 1.5]),
    chunk=st.sampled_from([1, 5, 16, 64]),
    draft_tokens=st.integers(1, 3),
)
def test_any_request_is_plain_decoding(
    prompt: list[int], seed: int, temperature: float, chunk: int, draft_tokens: int
) -> None:
    params = SamplingParams(max_tokens=9, temperature=temperature, seed=seed)
    plain = run(engine(0), prompt, params)
    fast = run(engine(draft_tokens, chunk=chunk), prompt, params)
    assert tokens(fast) == tokens(plain)
    assert fast[-1].finish_reason == plain[-1].finish_reason


def forced(made: Engine, text: Sequence[int], start: int, plan: Sequence[int]) -> None:
    """Teacher-force `text` from `start` with right drafts except that step i rejects plan[i] of
    them.

    Greedy text is what the model emits, so a draft that differs from it is rejected.
    """
    position = start
    for rejected in plan:
        right = made.draft_tokens - rejected
        drafts = list(text[position + 1 : position + 1 + right])
        drafts += [(token + 1) % 300 + 3 for token in text[position + 1 + right :][:rejected]]
        turn = Turn(slot=0, position=position, token=text[position], drafts=tuple(drafts))
        [committed] = made.decode([turn])
        assert committed.accepted == right
        expected = text[position + 1 : position + 2 + right]
        assert list(committed.tokens) == list(expected), (position, rejected)
        position += right + 1


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rejected", [0, 1, 2, 3])
@pytest.mark.parametrize("edge", [16, 32, 40])
def test_rejections_around_window_and_sparse_edges(
    precision: Precision, rejected: int, edge: int
) -> None:
    """Window 16 and sparse boundary 40 of the golden model, edge-4 .. edge+4 (faults E3, E4)."""
    prompt = prompt_of(60)[: edge - 4]
    plain = tokens(run(engine(0, precision), prompt, GREEDY))
    made = engine(3, precision)
    first = made.prefill(prompt, 0, GREEDY)
    text = prompt + plain
    assert first.tokens == (plain[0],)
    forced(made, text, len(prompt), [rejected, 3, rejected, 0, rejected])


@pytest.mark.parametrize("draft_tokens", [1, 2, 3])
def test_batch_mates_change_nothing(draft_tokens: int) -> None:
    """Three slots in one call, and a padding slot, against each alone (fault H2)."""
    model = golden_model()
    shared = Engine(
        *(model.config, model.weights),
        precision="bf16",
        draft_tokens=draft_tokens,
        plan=EnginePlan(batches=(4,), prefill=(64,)),
        context=256,
        slots=3,
    )
    prompts = [prompt_of(5), prompt_of(60)[:37], prompt_of(150)]
    params = [
        SEEDED,
        GREEDY,
        SamplingParams(max_tokens=24, temperature=1.3, seed=-5, ignore_eos=True),
    ]
    alone = [
        tokens(run(engine(draft_tokens, "bf16"), p, q))
        for p, q in zip(prompts, params, strict=True)
    ]
    committed = [shared.prefill(p, slot, params[slot]) for slot, p in enumerate(prompts)]
    found = [list(c.tokens) for c in committed]
    while min(map(len, found)) < 16:
        committed = shared.decode(
            [
                Turn(slot=slot, position=len(p) + len(f) - 1, token=f[-1], drafts=c.drafts)
                for slot, (p, f, c) in enumerate(zip(prompts, found, committed, strict=True))
            ]
        )
        for f, c in zip(found, committed, strict=True):
            f += c.tokens
    for f, expected in zip(found, alone, strict=True):
        count = min(len(f), len(expected))
        assert f[:count] == expected[:count]


def test_a_slot_forgets_its_last_request() -> None:
    made = engine(3)
    run(made, prompt_of(150), SEEDED)
    again = run(made, prompt_of(60), GREEDY)
    assert again == run(engine(3), prompt_of(60), GREEDY)


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_request_resumed_from_its_own_text_continues_alike(draft_tokens: int) -> None:
    """Fault G5: noise is keyed by absolute position, so prefill draws what decode would draw."""
    prompt, params = prompt_of(60), SEEDED
    text = tokens(run(engine(draft_tokens), prompt, params))
    for done in (1, 4, 9):
        rest = dataclasses.replace(params, max_tokens=params.max_tokens - done)
        assert tokens(run(engine(draft_tokens), prompt + text[:done], rest)) == text[done:]


def test_summary_counts_emitted_tokens_only() -> None:
    steps = run(engine(3), prompt_of(60), GREEDY)
    summary = summarise(60, steps)
    assert summary.completion_tokens == 40 == len(tokens(steps))
    assert summary.steps == len(steps) - 1
    assert summary.tokens_per_step == pytest.approx(39 / summary.steps)
    rates = summary.acceptance_by_position
    assert len(rates) == 3
    assert all(0 <= rate <= 1 for rate in rates)
    assert list(rates) == sorted(rates, reverse=True)
