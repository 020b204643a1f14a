"""The parts of the sampling kernels that a small vocabulary never reaches, argmax and the counts.

A shortlist stands for a row where filters are on, a bound for the noise of most tokens: what they
draw is compared with the reference, which sorts and works out everything.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphs.ops.library import References
from graphs.ops.sample import argmax, count_tokens
from graphs.ops.sample_noise import gumbel
from graphs.sampling import MASK, pack_bits
from tests.graphs.draws import Draws, drawn, draws

VOCAB = 20_011  # several blocks of the kernels and a part of one
SEEDS = 24


def normal(spread: float) -> Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) * spread


DISTRIBUTIONS: dict[str, Tensor] = {
    "flat": torch.zeros(VOCAB),
    "normal": normal(1.0),
    "wide": normal(4.0),
    "falling": -torch.arange(VOCAB) / 50,  # the largest all in one place
    "rising": torch.arange(VOCAB) / 300,
    "steps": torch.arange(VOCAB).remainder(7).float(),
    "one": torch.where(torch.arange(VOCAB) == VOCAB - 1, 0.0, -40.0),
    "few": torch.where(torch.arange(VOCAB) % 999 == 5, 1.0, -math.inf),
}
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "top-k": {"top_k": 50},
    "top-k, many": {"top_k": 3000},
    "top-k, most": {"top_k": VOCAB - 20, "temperature": 50.0},
    "top-p": {"top_p": 0.9},
    "top-p, nearly 1": {"top_p": 0.99999},
    "top-p, small": {"top_p": 0.01},
    "min-p": {"min_p": 0.1},
    "min-p, subnormal": {"min_p": 1e-42},
    "min-p, 1": {"min_p": 1.0},
    "min-p, more": {"min_p": 4.0},
    "cold": {"temperature": 0.25, "top_k": 400, "top_p": 0.95},
    "hot": {"temperature": 40.0, "top_p": 0.5, "min_p": 0.5},
    "too hot to tell": {"temperature": 1e38, "top_k": 300},
    "too cold to divide": {"temperature": 1e-45, "top_p": 0.5},
}


def case(distribution: str, filters: str) -> Draws:
    logits = DISTRIBUTIONS[distribution].repeat(SEEDS, 1)
    return draws(logits, seed=torch.arange(SEEDS), **FILTERS[filters])


@cache
def expected(distribution: str, filters: str) -> tuple[list[int], Tensor]:
    with References():
        token, logprob = case(distribution, filters).run()
    return token.flatten().tolist(), logprob


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_large_rows_draw_what_the_reference_draws(
    isa: str, distribution: str, filters: str
) -> None:
    token, logprob = case(distribution, filters).run()
    tokens, logprobs = expected(distribution, filters)
    assert token.flatten().tolist() == tokens
    torch.testing.assert_close(logprob, logprobs, rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 3000}, 3000),
        ({"top_k": 70}, 70),
        ({"top_p": 0.25}, math.ceil(VOCAB * 0.25)),
        ({"top_k": 600, "top_p": 0.5}, 300),
        ({"top_k": 8, "top_p": 0.5}, 4),
        ({"min_p": 1.0, "top_p": 0.5}, math.ceil(VOCAB * 0.5)),
        ({"temperature": 1e38, "top_k": 300}, 300),
    ],
)
def test_equal_logits_are_kept_by_rising_id(isa: str, filters: dict[str, Any], kept: int) -> None:
    """All of the prefix is drawn from, and nothing after it."""
    count = 500
    found = drawn(torch.zeros(count, VOCAB), seed=torch.arange(count), **filters)
    assert 0.98 * kept <= int(found.max()) + 1 <= kept
    assert int(found.min()) <= 0.02 * kept


def test_the_largest_logit_is_not_kept_where_scaling_hides_it(isa: str) -> None:
    logits = torch.zeros(3000, 1000)
    logits[:, -1] = 1e-8
    found = drawn(logits, seed=torch.arange(3000), temperature=1e38, top_k=300)
    assert 290 < int(found.max()) < 300


def tied() -> Tensor:
    """Rows of two tokens whose scores are one float: half have the larger logit first."""
    seed = torch.arange(200)
    first, second = gumbel(seed, seed * 0, seed * 0, 2).unbind(1)
    low = torch.minimum(first - second, second - first)
    logits = torch.where(first < second, 0.0, low), torch.where(first < second, low, 0.0)
    return torch.stack(logits, dim=1)


@pytest.mark.parametrize("filters", [{}, {"top_k": 1000, "top_p": 0.999999}])
def test_of_equal_scores_the_lower_id_wins(isa: str, filters: dict[str, Any]) -> None:
    seed, logits = torch.arange(200), tied()
    found = drawn(logits, seed=seed, **filters)
    score = logits + gumbel(seed, seed * 0, seed * 0, 2)
    equal = score[:, 0] == score[:, 1]
    assert int(equal.sum()) > 100
    assert not found[equal].any()


def test_a_whole_vocabulary(isa: str) -> None:
    """The release's, once: greedy, plain and filtered."""
    made = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 128_896, generator=made) * 3
    whole = draws(
        logits,
        seed=torch.arange(6),
        temperature=[0.0, 1.0, 1.0, 0.7, 1.0, 0.6],
        top_k=[0, 0, 50, 0, 50, 20],
        top_p=[1.0, 1.0, 1.0, 0.95, 0.95, 0.95],
    )
    token, logprob = whole.run()
    with References():
        tokens, logprobs = whole.run()
    assert torch.equal(token, tokens)
    torch.testing.assert_close(logprob, logprobs, rtol=1e-6, atol=3e-6)


SIZES = [1, 15, 16, 63, 64, 65, 1023, 1024, 1025, 2049]


@pytest.mark.parametrize("size", SIZES)
def test_argmax(isa: str, size: int) -> None:
    made = torch.Generator().manual_seed(size)
    rows = torch.randint(-3, 3, (40, size), generator=made).float()
    rows[1] = -math.inf
    for row in rows[2:12]:
        row[torch.randint(0, size, (1,), generator=made)] = 3.0
    rows[12, -1] = rows[13, 0] = rows[14, size // 2] = math.nan
    rows[15, -1] = math.inf
    wanted = [row.index(max(row)) for row in rows.tolist()]
    wanted[12:15] = [-1] * 3
    assert argmax(rows).tolist() == wanted
    strided = torch.cat([rows, rows.flip(1)], dim=1)[:, :size]
    assert argmax(strided).tolist() == wanted
    with References():
        assert argmax(rows).tolist() == wanted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_what_has_no_number_is_reported(
    isa: str, temperature: float, filters: dict[str, Any]
) -> None:
    """NaN and plus infinity wherever they are, a mask that allows nothing, no finite logit."""
    rows = torch.zeros(6, 70)
    rows[0, 0] = rows[1, 69] = math.nan
    rows[2, 66] = math.inf
    rows[3] = -math.inf
    rows[4, 1] = math.nan  # and refused by the mask
    sets = [pack_bits(ids, 70) for ids in ([], [], [], [], [5, 6], [])]
    flags = torch.tensor([0, 0, 0, 0, MASK, MASK])
    made = draws(rows, temperature=temperature, flags=flags, mask=torch.stack(sets), **filters)
    found = made.run()
    with References():
        expected = made.run()
    for token, logprob in (found, expected):
        assert token.flatten().tolist() == [-1] * 6
        assert logprob.isnan().all()


def test_the_logprob_is_that_of_the_model_whatever_the_rules_do(isa: str) -> None:
    """The largest logit refused, by far: its e^x does not overflow."""
    logits = torch.tensor([[300.0, 0.0, 1.0]])
    made = draws(logits, temperature=0.0, flags=MASK, mask=pack_bits([1, 2], 3)[None])
    found = made.run()
    with References():
        expected = made.run()
    for token, logprob in (found, expected):
        assert (token.item(), logprob.item()) == (2, -299.0)


@settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5),
    st.integers(0, 2**32),
)
def test_counts(kernels: None, width: int, entries: list[tuple[int, int]], seed: int) -> None:
    """Committed tokens alone, several entries of one slot (padding) included."""
    made = torch.Generator().manual_seed(seed)
    sampled = torch.randint(-1, 3, (len(entries), width), generator=made)
    slot = torch.tensor([slot for slot, _ in entries])
    accepted = torch.tensor([min(count, width - 1) for _, count in entries])
    start = torch.randint(0, 5, (4, 3), generator=made, dtype=torch.int32)
    expected = start.clone()
    for row, committed, tokens in zip(slot, accepted, sampled.tolist(), strict=True):
        for token in tokens[: int(committed) + 1]:
            if token >= 0:
                expected[row, token] += 1
    found = start.clone()
    count_tokens(found, slot, sampled, accepted)
    assert torch.equal(found, expected)
    with References():
        count_tokens(start, slot, sampled, accepted)
    assert torch.equal(start, expected)


def test_the_kernels_refuse_a_slot_that_is_not_there(kernels: None) -> None:
    """Before any memory is touched."""
    made = draws(torch.zeros(1, 5))
    with pytest.raises(RuntimeError, match="prompt is"):
        replace(made, state=replace(made.state, prompt=torch.zeros(2, 2).int())).run()
    state = made.state
    with pytest.raises(RuntimeError, match="slot 2 is outside"):
        count_tokens(state.counts, torch.tensor([2]), torch.zeros(1, 1).long(), torch.tensor([0]))
    with pytest.raises(RuntimeError, match="token 5 is outside"):
        count_tokens(state.counts, torch.tensor([0]), torch.full((1, 1), 5), torch.tensor([0]))
