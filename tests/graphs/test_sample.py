"""The sampler's parts: its noise, its filters and its argmax.

Every draw has a fixed key, so nothing here is a chance; p-values are constants of the code.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import gumbel_r, kstest
from torch import Tensor

from graphs.ops.sample import first_argmax
from graphs.ops.sample_filters import keep_mask
from graphs.ops.sample_noise import gumbel, philox
from tests.fit import p_value

WORD = 2**32


def noise(count: int, vocab: int, **keys: Any) -> Tensor:
    """gumbel [count, vocab]; a key is one value for all rows or a list."""
    filled = {"seed": 0, "choice": 0, "position": 0, **keys}
    parts = {name: torch.as_tensor(value).expand(count) for name, value in filled.items()}
    return gumbel(parts["seed"], parts["choice"], parts["position"], vocab)


def kept(scaled: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    """Ids that the filters leave of one row."""
    values = torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p])
    return keep_mask(scaled[None], *values)[0].nonzero().flatten().tolist()


def words(*values: int) -> tuple[Any, ...]:
    return tuple(torch.tensor([value]) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((WORD - 1,) * 4, (WORD - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers_of_philox(
    counter: tuple[int, ...], key: tuple[int, ...], expected: str
) -> None:
    found = philox(words(*counter), words(*key))
    assert " ".join(f"{int(word):08x}" for word in found) == expected


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox-4x32-10 in Python's integers."""
    c, (k0, k1) = counter, key
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b // WORD ^ c[1] ^ k0, b % WORD, a // WORD ^ c[3] ^ k1, a % WORD]
        k0, k1 = (k0 + 0x9E3779B9) % WORD, (k1 + 0xBB67AE85) % WORD
    return c


@settings(deadline=None, derandomize=True)
@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 11),
)
def test_the_noise_of_a_token_is_keyed_by_seed_choice_position_and_id(
    seed: int, choice: int, position: int, vocab: int
) -> None:
    """The key's layout, so that a seed keeps its meaning from version to version."""
    signed = seed - 2**64 if seed >= 2**63 else seed
    found = noise(1, vocab, seed=signed, choice=choice, position=position)[0]
    for token in range(vocab):
        counter = [token // 4, position % WORD, position // WORD, choice]
        word = plain_philox(counter, [seed % WORD, seed // WORD])[token % 4]
        assert found[token] == pytest.approx(-math.log(-math.log((word + 0.5) / WORD)), rel=1e-6)


def test_moments_of_the_noise() -> None:
    found = noise(400, 500, seed=list(range(400))).flatten().double()
    assert found.mean() == pytest.approx(0.5772157, abs=0.01)  # 3.5 standard errors
    assert found.var() == pytest.approx(math.pi**2 / 6, abs=0.03)
    uniform = torch.exp(-torch.exp(-found))
    assert uniform.mean() == pytest.approx(0.5, abs=0.0025)
    assert uniform.var() == pytest.approx(1 / 12, abs=0.0008)
    assert kstest(found.numpy(), gumbel_r.cdf).pvalue > 0.01


NEIGHBOURS: dict[str, Callable[[], Tensor]] = {
    "tokens": lambda: noise(20_000, 2, seed=list(range(20_000))),
    "positions": lambda: noise(40_000, 1, position=list(range(40_000))).view(-1, 2),
    "seeds": lambda: noise(40_000, 1, seed=list(range(40_000))).view(-1, 2),
    "choices": lambda: noise(40_000, 1, choice=list(range(40_000))).view(-1, 2),
}


@pytest.mark.parametrize("kind", NEIGHBOURS)
def test_the_noise_of_neighbours_is_independent(kind: str) -> None:
    uniform = torch.exp(-torch.exp(-NEIGHBOURS[kind]().double()))
    first, second = (uniform * 10).long().unbind(1)
    counts = torch.bincount(first * 10 + second, minlength=100)
    assert p_value(counts, torch.full((100,), 0.01)) > 0.01


@pytest.mark.parametrize(
    ("token", "position", "choice", "expected"),
    [
        (976, 2063040036 * WORD + 225044052, 1110677315, -math.log(math.log(2 * WORD))),
        (2276, 79591047 * WORD + 437243620, 1633289877, math.log(2 * WORD)),
    ],
    ids=["word 0", "last word"],
)
def test_the_noise_is_finite_at_both_ends(
    token: int, position: int, choice: int, expected: float
) -> None:
    """Keys whose word is 0 and 2^32 - 1, found by running Philox backwards."""
    found = noise(1, token + 1, position=position, choice=choice)[0, token]
    assert found == pytest.approx(expected, rel=1e-6)


def test_first_argmax() -> None:
    x = [[1.0, 3.0, 3.0], [-0.0, 0.0, -1.0], [0.0, -0.0, -1.0], [-math.inf, -math.inf, -2.0]]
    assert first_argmax(torch.tensor(x)).tolist() == [1, 0, 0, 2]
    assert first_argmax(torch.tensor([[-0.0, 0.0], [2.0, 2.0]])).tolist() == [0, 0]
    nothing = [[1.0, math.nan], [math.nan, 5.0]]
    assert first_argmax(torch.tensor(nothing)).tolist() == [-1, -1]


def kept_plainly(scaled: list[float], top_k: int, top_p: float, min_p: float) -> list[int]:
    """min-p, then top-k, then top-p of one row, token by token."""
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    relative = {token: math.exp(scaled[token] - scaled[order[0]]) for token in order}
    close = 1e-6  # a threshold that is met but for rounding says nothing about the rule
    assume(all(r == min_p or abs(r - min_p) > close for r in relative.values()))
    left = [token for token in order if relative[token] >= min_p]
    left = left[:top_k] if top_k else left
    total, before, found = sum(relative[token] for token in left), 0.0, []
    for token in left:
        share = before / total
        assume(share == top_p or abs(share - top_p) > close)
        if top_p >= 1 or share < top_p:
            found.append(token)
        before += relative[token]
    return sorted(found)


LOGITS = st.lists(
    st.one_of(
        st.integers(-3, 3).map(float),
        st.floats(-50, 50, width=32),
        st.sampled_from([-math.inf, 0.0, -0.0, 1e30, -1e30]),
    ),
    min_size=1,
    max_size=12,
).filter(lambda values: max(values) > -math.inf)
EIGHTHS = st.integers(1, 8).map(lambda part: part / 8)
FILTERS = st.tuples(
    st.integers(0, 13),
    st.one_of(EIGHTHS, st.floats(0.0078125, 1, width=32)),
    st.one_of(st.just(0.0), EIGHTHS, st.floats(0, 1, width=32)),
)


@settings(deadline=None, derandomize=True, max_examples=400)
@given(LOGITS, FILTERS)
def test_the_filters_against_a_plain_implementation(
    logits: list[float], filters: tuple[int, float, float]
) -> None:
    top_k, top_p, min_p = filters
    expected = kept_plainly(logits, top_k, top_p, min_p)
    found = kept(torch.tensor(logits), top_k=top_k, top_p=top_p, min_p=min_p)
    assert found == expected
    assert expected  # never nothing


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [0, 1, 2]),  # of the three that tie, the lower ids
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.6}, [0, 1]),
        ({"top_p": 1e-9}, [1]),
        ({"min_p": 0.4}, [0, 1]),
        ({"min_p": 1.0}, [1]),
        ({"min_p": 0.2, "top_p": 0.8}, [0, 1, 2]),
        ({"top_k": 3, "top_p": 0.8}, [0, 1]),  # shares of 4/7, 2/7 and 1/7
    ],
)
def test_the_filters_on_one_row(filters: dict[str, Any], expected: list[int]) -> None:
    """Probabilities 1/4, 1/2, 1/8, 1/8 and next to nothing."""
    assert kept(torch.tensor([0.25, 0.5, 0.125, 0.125, 1e-9]).log(), **filters) == expected
