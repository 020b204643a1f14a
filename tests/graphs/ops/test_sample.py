"""The sampling kernels against a plain implementation, their references and themselves.

The plain implementation works token by token in Python's numbers and shares nothing with the two
others. Examples in which two outcomes are closer than rounding are left out.
"""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphs.ops.build import set_threads
from graphs.ops.library import References
from graphs.sampling import BIAS, MASK, pack_bits, words
from tests.graphs.draws import Draws, draws
from tests.graphs.test_sample import WORD, kept_plainly, plain_philox


def plain_row(case: Draws, entry: int, k: int) -> list[float]:
    """One row's logits after bias, mask and penalties."""
    width, slot = case.tokens.shape[1], int(case.slot[entry])
    params = {name: value[slot].item() for name, value in vars(case.state.params).items()}
    row = case.logits[entry * width + k].tolist()
    allowed = [word % WORD for word in case.mask[entry * width + k].tolist()]
    prompt = [word % WORD for word in case.state.prompt[slot].tolist()]
    before = case.tokens[entry, 1 : k + 1].tolist()
    for token, logit in enumerate(row):
        count = int(case.state.counts[slot, token]) + before.count(token)
        if params["flags"] & BIAS:
            logit += float(case.state.bias[slot, token])
        if params["flags"] & MASK and not allowed[token // 32] >> token % 32 & 1:
            logit = -math.inf
        if count or prompt[token // 32] >> token % 32 & 1:
            logit = logit / params["repetition"] if logit > 0 else logit * params["repetition"]
        row[token] = logit - params["frequency"] * count - (params["presence"] if count else 0)
    return row


def plain_draw(case: Draws, entry: int, k: int) -> int:
    """The token of one row; rejects examples that rounding decides."""
    slot = int(case.slot[entry])
    params = {name: value[slot].item() for name, value in vars(case.state.params).items()}
    row = plain_row(case, entry, k)
    top = max(row)
    if top == -math.inf:
        return -1
    order = sorted(set(row), reverse=True)
    assume(all(a - b > 1e-4 for a, b in itertools.pairwise(order)))
    if params["temperature"] == 0:
        return row.index(top)
    scaled = [(logit - top) / params["temperature"] for logit in row]
    position, seed = int(case.position[entry]) + k, params["seed"] % 2**64
    scores = {}
    for token in kept_plainly(scaled, params["top_k"], params["top_p"], params["min_p"]):
        counter = [token // 4, position % WORD, position // WORD, params["choice"]]
        word = plain_philox(counter, [seed % WORD, seed // WORD])[token % 4]
        scores[token] = scaled[token] - math.log(-math.log((word + 0.5) / WORD))
    best, *others = sorted(scores, key=lambda token: -scores[token])
    assume(not others or scores[best] - scores[others[0]] > 1e-4)
    return best


LOGIT = st.one_of(
    *(st.integers(-4, 4).map(float), st.floats(-30, 30, width=32)),
    *(st.just(-math.inf), st.sampled_from([0.0, -0.0, 2.5])),
)
PARAMS = st.fixed_dictionaries(
    {
        "seed": st.integers(-(2**63), 2**63 - 1),
        "choice": st.integers(0, 2**31 - 1),
        "temperature": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 1, 3, 20, 1000]),
        "top_p": st.sampled_from([1.0, 0.9, 0.3]),
        "min_p": st.sampled_from([0.0, 0.05, 1.0]),
        "presence": st.sampled_from([0.0, 1.5, -0.75]),
        "frequency": st.sampled_from([0.0, 0.25]),
        "repetition": st.sampled_from([1.0, 1.25, 0.5]),
        "flags": st.integers(0, 3),
    }
)


@st.composite
def cases(draw: st.DrawFn) -> Draws:
    """One to three entries of one to four rows, with whatever rules."""
    entries, width = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    vocab = draw(st.sampled_from([1, 2, 5, 31, 32, 33, 70]))
    params = [draw(PARAMS) for _ in range(entries)]
    seed = draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    some = draw(st.lists(LOGIT, min_size=1, max_size=12))
    ids = torch.randint(0, len(some), (entries * width, vocab), generator=generator)
    chance = draw(st.sampled_from([0.0, 0.1, 0.9]))
    allowed = torch.rand(entries * width, vocab, generator=generator) < chance
    sets = torch.stack([pack_bits(row.nonzero().flatten().tolist(), vocab) for row in allowed])
    return draws(
        torch.tensor(some)[ids],
        width=width,
        **{name: [each[name] for each in params] for name in params[0]},
        position=torch.randint(0, 2**40, (entries,), generator=generator),
        tokens=torch.randint(0, min(vocab, 3), (entries, width), generator=generator),
        counts=torch.randint(0, draw(st.integers(1, 3)), (entries, vocab), generator=generator),
        prompt=sets[-entries:],
        bias=torch.randint(-3, 4, (entries, vocab), generator=generator).float(),
        mask=sets,
    )


def check_draws(case: Draws) -> None:
    expected = [
        [plain_draw(case, entry, k) for k in range(case.tokens.shape[1])]
        for entry in range(len(case.tokens))
    ]
    token, logprob = case.run()
    assert token.tolist() == expected
    logs = torch.log_softmax(case.logits.double(), dim=1)
    at = logs.gather(1, token.flatten().clamp(min=0)[:, None])[:, 0].float()
    at = torch.where(token.flatten() < 0, torch.nan, at)
    torch.testing.assert_close(logprob.flatten(), at, rtol=1e-6, atol=2e-6, equal_nan=True)


@settings(deadline=None, derandomize=True, max_examples=120)
@given(cases())
def test_the_reference_against_a_plain_implementation(case: Draws) -> None:
    with References():
        check_draws(case)


@settings(
    deadline=None,
    derandomize=True,
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the instruction set stays
)
@given(case=cases())
def test_the_kernels_against_a_plain_implementation(isa: str, case: Draws) -> None:
    check_draws(case)


RULES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "none": ({}, [0, 0, 0]),
    "repetition of the prompt": ({"repetition": 1.25, "prompt": [0]}, [1, 1, 1]),
    "repetition of the output": ({"repetition": 1.25, "counts": [1]}, [1, 1, 1]),
    "repetition once": ({"repetition": 1.08, "prompt": [0], "counts": [3]}, [1, 1, 1]),
    "presence": ({"presence": 0.15, "counts": [3]}, [1, 1, 1]),
    "presence of the prompt": ({"presence": 0.15, "prompt": [0]}, [0, 0, 0]),
    "frequency of two": ({"frequency": 0.04, "counts": [2]}, [0, 0, 0]),
    "frequency of three": ({"frequency": 0.04, "counts": [3]}, [1, 1, 1]),
    "drafts": ({"presence": 0.25, "tokens": [[0, 0, 1]]}, [0, 1, 2]),
    "drafts counted too": ({"frequency": 0.04, "counts": [1], "tokens": [[5, 0, 0]]}, [0, 0, 1]),
    "a draft of no token": ({"presence": 0.25, "tokens": [[0, -1, 70]]}, [0, 0, 0]),
    "bias": ({"flags": BIAS, "bias": [0.0, 0.2]}, [1, 1, 1]),
    "bias not in use": ({"flags": MASK, "bias": [0.0, 0.2], "mask": [0, 1]}, [0, 0, 0]),
    "mask": ({"flags": MASK, "mask": [2, 69]}, [2, 2, 2]),
    "mask not in use": ({"flags": BIAS, "mask": [2, 69]}, [0, 0, 0]),
}


@pytest.mark.parametrize("rule", RULES)
def test_one_rule_at_a_time(isa: str, rule: str) -> None:
    """Greedy rows of one entry: logits 2.0, 1.9, 1.8 and far less."""
    given, expected = RULES[rule]
    given, vocab = dict(given), 70
    for name in {"counts", "bias"} & given.keys():
        values = torch.tensor(given[name])
        given[name] = torch.cat([values, values.new_zeros(vocab - len(values))])
    for name in {"prompt", "mask"} & given.keys():
        given[name] = pack_bits(given[name], vocab)
    given["mask"] = given.get("mask", pack_bits([], vocab)).repeat(3, 1)
    given["tokens"] = torch.tensor(given.get("tokens", [[0, 40, 41]]))
    logits = torch.full((3, vocab), -5.0)
    logits[:, :3] = torch.tensor([2.0, 1.9, 1.8])
    made = draws(logits, width=3, temperature=0.0, **given)
    assert made.run()[0].flatten().tolist() == expected
    with References():
        assert made.run()[0].flatten().tolist() == expected


def same_bits(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    tokens = torch.equal(one[0], other[0])
    return tokens and torch.equal(one[1].view(torch.int32), other[1].view(torch.int32))


def many(vocab: int, entries: int = 256, width: int = 1, **given: Any) -> Draws:
    """A batch in which every rule is on somewhere, and whole rows have none."""
    made = torch.Generator().manual_seed(vocab + width)
    turns = torch.arange(entries)

    def cycle(*values: float) -> Tensor:
        return torch.tensor(values)[turns % len(values)]

    rows = entries * width
    logits = torch.randn(rows, vocab, generator=made) * 3
    logits[:, ::7] = -math.inf
    return draws(
        logits,
        width=width,
        **{
            "seed": turns * 31,
            "position": turns // 3,
            "temperature": cycle(0.0, 0.7, 1.0, 3.0, 0.7),
            "top_k": cycle(0, 50, 0, 3),
            "top_p": cycle(1.0, 0.95, 0.5),
            "min_p": cycle(0.0, 0.0, 0.0, 0.02, 0.0, 0.0, 0.3),
            "presence": cycle(0.0, 0.0, 0.5),
            "repetition": cycle(1.0, 1.0, 1.0, 1.0, 1.2),
            "flags": cycle(0, 0, 0, BIAS, 0, MASK, BIAS | MASK),
            "tokens": torch.randint(0, vocab, (entries, width), generator=made),
            "counts": (torch.rand(entries, vocab, generator=made) < 0.05).int(),
            "bias": torch.randn(entries, vocab, generator=made),
            "mask": torch.randint(-(2**31), 2**31, (rows, words(vocab)), generator=made).int(),
            **given,
        },
    )


@pytest.mark.parametrize("width", [1, 4])
def test_a_row_does_not_depend_on_the_others_or_on_threads(isa: str, width: int) -> None:
    case = many(1100, entries=64, width=width)
    token, logprob = case.run()
    for entries in ([0], [63, 5, 5, 17], list(range(63, -1, -1))):
        assert same_bits(case.pick(entries).run(), (token[entries], logprob[entries])), entries
    set_threads(2)
    again = case.run()
    set_threads(1)
    assert same_bits(again, (token, logprob))


@pytest.mark.parametrize("vocab", [3, 64, 1000, 4099])
def test_the_kernels_draw_what_the_reference_draws(isa: str, vocab: int) -> None:
    case = many(vocab)
    token, logprob = case.run()
    with References():
        expected = case.run()
    assert torch.equal(token, expected[0])
    torch.testing.assert_close(logprob, expected[1], rtol=1e-6, atol=2e-6, equal_nan=True)
