"""What a draw depends on and what not, and that draws have the frequencies they should have.

Keys are fixed, so nothing here is a chance. The noise and the filters have test_sample.py.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.ops.sample import first_argmax
from tests.fit import filtered, p_value
from tests.graphs.draws import drawn, draws

COUNT = 20_000
LOGITS = torch.randn(40, generator=torch.Generator().manual_seed(3)) * 2
FILTERS: dict[str, dict[str, float]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 2.0},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "all": {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
}


@pytest.mark.parametrize("varied", ["seed", "position", "choice"])
@pytest.mark.parametrize("filters", FILTERS)
def test_frequencies(filters: str, varied: str) -> None:
    found = drawn(LOGITS.repeat(COUNT, 1), **FILTERS[filters], **{varied: list(range(COUNT))})
    counts = torch.bincount(found, minlength=len(LOGITS))
    assert p_value(counts, filtered(LOGITS, **FILTERS[filters])) > 0.01


def test_the_frequencies_tell_filters_apart() -> None:
    """The test above sees a filter that is not applied, and a temperature that is a little off."""
    found = drawn(LOGITS.repeat(COUNT, 1), seed=list(range(COUNT)))
    counts = torch.bincount(found, minlength=len(LOGITS))
    for name, wrong in FILTERS.items():
        if name != "plain":
            assert p_value(counts, filtered(LOGITS, **wrong)) < 1e-6
    assert p_value(counts, filtered(LOGITS, temperature=1.1)) < 1e-6


MANY = 64
MIXED = {
    "seed": [7 * i for i in range(MANY)],
    "choice": [i % 3 for i in range(MANY)],
    "position": [i // 2 for i in range(MANY)],
    "temperature": [(0.0, 0.3, 1.0, 4.0)[i % 4] for i in range(MANY)],
    "top_k": [(0, 3, 50)[i % 3] for i in range(MANY)],
    "top_p": [(1.0, 0.7)[i % 2] for i in range(MANY)],
    "min_p": [(0.0, 0.05)[i // 2 % 2] for i in range(MANY)],
    "presence": [(0.0, 0.0, 1.5)[i % 3] for i in range(MANY)],
    "repetition": [(1.0, 1.3, 0.7)[i % 3] for i in range(MANY)],
}


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(0, MANY - 1), min_size=1, max_size=MANY), st.sampled_from([5, 97]))
def test_a_draw_does_not_depend_on_the_other_rows(index: list[int], vocab: int) -> None:
    made = torch.Generator().manual_seed(vocab)
    logits = torch.randn(2 * MANY, vocab, generator=made) * 3
    counts = torch.randint(0, 3, (MANY, vocab), dtype=torch.int32, generator=made)
    tokens = torch.randint(0, vocab, (MANY, 2), generator=made)
    batch = draws(logits, width=2, tokens=tokens, counts=counts, **MIXED)
    for found, expected in zip(batch.pick(index).run(), batch.run(), strict=True):
        assert torch.equal(found, expected[index])


def flat(**keys: Any) -> list[int]:
    """Eight draws from a flat distribution of 1000 tokens at successive positions."""
    start = keys.pop("position", 0)
    return drawn(torch.zeros(8, 1000), position=[start + i for i in range(8)], **keys).tolist()


KEYS: tuple[dict[str, int], ...] = (
    *({}, {"seed": 1}, {"seed": 2**32}, {"seed": 2**62}, {"seed": -(2**63)}, {"seed": -1}),
    *({"choice": 1}, {"choice": 2**31 - 1}, {"seed": 1, "choice": 1}),
    *({"position": 100}, {"position": 2**32}, {"position": 2**40}, {"position": 2**62}),
)


def test_every_part_of_the_key_matters() -> None:
    found = [tuple(flat(**keys)) for keys in KEYS]
    assert len(set(found)) == len(KEYS)
    assert found == [tuple(flat(**keys)) for keys in KEYS]


def test_positions_do_not_repeat_each_other() -> None:
    assert len(set(flat())) == 8


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 3),
    st.sampled_from([1.0, 0.5]),
)
def test_temperature_zero_is_the_first_argmax(
    logits: list[float], seed: int, top_k: int, top_p: float
) -> None:
    row = torch.tensor([logits])
    found = drawn(row, seed=seed, temperature=0.0, top_k=top_k, top_p=top_p, min_p=0.1)
    assert found.item() == first_argmax(row).item() == logits.index(max(logits))


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    """Also where logits divided by it would all be infinite."""
    row = torch.tensor([[50.0, 100.0, 99.0], [-300.0, -200.0, -201.0], [0.0, 1e30, -1e30]])
    for seed in range(20):
        assert drawn(row, seed=seed, temperature=temperature).tolist() == [1, 1, 1]


def test_a_huge_temperature_is_flat() -> None:
    found = drawn(LOGITS.repeat(COUNT, 1), temperature=1e38, seed=list(range(COUNT)))
    counts = torch.bincount(found, minlength=len(LOGITS))
    assert p_value(counts, torch.full_like(LOGITS, 1 / len(LOGITS))) > 0.01


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 1.0, 1e38])
def test_what_has_no_probability_is_never_drawn(temperature: float) -> None:
    row = torch.tensor([-math.inf, 0.0, -math.inf, 0.5]).repeat(2_000, 1)
    found = drawn(row, temperature=temperature, seed=list(range(2_000)))
    assert set(found.tolist()) <= {1, 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 2])
def test_nan_is_reported(temperature: float, place: int) -> None:
    row = torch.zeros(2, 3)
    row[1, place] = math.nan
    found = drawn(row, temperature=temperature, top_k=2, top_p=0.9)
    assert found[0] >= 0
    assert found[1] == -1
