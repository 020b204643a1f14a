"""Sampled continuations have the model's own distribution, with speculation and without.

Fits the joint frequencies of the first two or three tokens over many seeds to the exact
probabilities, computed from the logits of every prefix. Seeds are fixed: a p-value is a constant of
the code. Keeps true: K = 0..3 give each seed the same tokens (faults H1, H2, H7).
"""

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor
from torch.utils import _pytree as pytree

from graphs.backbone import head
from graphs.plan import EnginePlan
from graphs.rows import Rows
from runtime.engine import Engine
from runtime.exchange import Committed, Turn
from runtime.generate import generate
from runtime.request import SamplingParams
from tests.fit import filtered, p_value
from tests.graphs.whole import FP32, fresh_state, golden, golden_model, layer_inputs

SEEDS, SLOTS, LENGTH = 512, 64, 3
SMALL = EnginePlan(batches=(1,), prefill=(8,))
FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filtered": {"top_k": 6, "top_p": 0.9, "min_p": 0.05},
}


def params(filters: str, seed: int) -> SamplingParams:
    asked = SamplingParams(temperature=1.0, seed=seed, max_tokens=LENGTH, ignore_eos=True)
    return dataclasses.replace(asked, **FILTERS[filters])


@cache
def prompt() -> list[int]:
    """Five tokens and a greedy sixth, so that a greedy prefill of the five commits the sixth."""
    ids = golden()["prompt_5"].tolist()
    return [*ids, int(next_logits([ids])[0].argmax())]


def next_logits(prefixes: Sequence[Sequence[int]]) -> Tensor:
    """[n, V] after each of n prefixes of one length."""
    model, count, length = golden_model(), len(prefixes), len(prefixes[0])
    rows = Rows(
        slot=torch.arange(count).repeat_interleave(length),
        position=torch.arange(length).repeat(count),
        valid=torch.ones(count * length, dtype=torch.bool),
    )
    state, weights = fresh_state(model, context=64, slots=count), model.weights
    *_, r_TH = layer_inputs(model, torch.tensor(prefixes).flatten(), state, rows=rows)
    last_nH = r_TH.unflatten(0, (count, length))[:, -1]
    return head(last_nH, weights.norm, weights.head, model.config, FP32)


@cache
def prefilled(draft_tokens: int) -> tuple[Engine, list[Committed], list[tuple[Tensor, Tensor]]]:
    """An engine with the prompt in every slot, what that committed, and a copy of its state."""
    model = golden_model()
    engine = Engine(
        *(model.config, model.weights),
        precision="fp32",
        draft_tokens=draft_tokens,
        plan=EnginePlan(widths=(1 + draft_tokens,), batches=(SLOTS,), prefill=(8,)),
        context=64,
        slots=SLOTS,
    )
    *start, last = prompt()
    committed = [engine.prefill(start, slot, SamplingParams()) for slot in range(SLOTS)]
    assert {one.tokens for one in committed} == {(last,)}
    leaves = [leaf for leaf in pytree.tree_leaves(engine.state) if isinstance(leaf, Tensor)]
    return engine, committed, [(leaf, leaf.clone()) for leaf in leaves]


@cache
def continuations(
    draft_tokens: int, filters: str, seeds: int = SEEDS
) -> tuple[Tensor, frozenset[int]]:
    """([seeds, LENGTH] tokens after the prompt, the counts of accepted drafts that occurred)."""
    engine, committed, saved = prefilled(draft_tokens)
    slots, place = range(SLOTS), len(prompt()) - 1
    rows, accepted = [], set()
    for first_seed in range(0, seeds, SLOTS):
        for leaf, value in saved:
            leaf.copy_(value)
        for slot in slots:
            engine.assign(slot, prompt()[:-1], params(filters, first_seed + slot))
        step, tokens = committed, [list(one.tokens) for one in committed]
        while min(map(len, tokens)) <= LENGTH:
            step = engine.decode(
                [
                    Turn(
                        slot=slot,
                        position=place + len(tokens[slot]) - 1,
                        token=tokens[slot][-1],
                        drafts=step[slot].drafts,
                    )
                    for slot in slots
                ]
            )
            for slot, one in enumerate(step):
                tokens[slot] += one.tokens
                accepted.add(one.accepted)
        rows += [line[1 : 1 + LENGTH] for line in tokens]
    return torch.tensor(rows), frozenset(accepted)


def test_the_batches_are_what_generate_yields() -> None:
    model = golden_model()
    engine = Engine(*(model.config, model.weights), precision="fp32", plan=SMALL, context=64)
    found, _ = continuations(3, "plain")
    for seed in (0, 1, 200, SEEDS - 1):
        steps = generate(engine, prompt(), params("plain", seed))
        assert [t for step in steps for t in step.token_ids] == found[seed].tolist()


@pytest.mark.parametrize("filters", FILTERS)
def test_every_k_gives_each_seed_the_same_tokens(filters: str) -> None:
    expected, _ = continuations(0, filters)
    for draft_tokens, seeds in ((1, SLOTS), (2, SLOTS), (3, SEEDS)):
        found, accepted = continuations(draft_tokens, filters, seeds)
        assert torch.equal(found, expected[:seeds])
        assert {0, 1} <= accepted  # of the drafts, some were rejected and some were right


def groups(p_V: Tensor, count: int) -> Tensor:
    """A group for each token, so that all groups are about equally probable."""
    order = p_V.argsort(descending=True, stable=True)
    group, mass = torch.zeros(len(p_V), dtype=torch.int64), torch.zeros(count)
    for token in order.tolist():
        group[token] = int(mass.argmin())
        mass[group[token]] += p_V[token]
    return group


@cache
def two_tokens() -> tuple[Tensor, Tensor]:
    """P(first) [V] and P(second | first) [V, V] at temperature 1."""
    vocab = golden_model().config.vocab_size
    first = torch.softmax(next_logits([prompt()])[0].double(), dim=0)
    after = next_logits([[*prompt(), token] for token in range(vocab)])
    return first, torch.softmax(after.double(), dim=1)


def fit_of_two(tokens: Tensor, first_V: Tensor, second_VV: Tensor) -> float:
    """p-value of the first two tokens, in 8 x 6 groups."""
    joint = first_V[:, None] * second_VV
    one, two = groups(first_V, 8), groups(joint.sum(0), 6)
    cell = one[:, None] * 6 + two
    expected = torch.zeros(48, dtype=torch.float64).index_add_(0, cell.flatten(), joint.flatten())
    return p_value(torch.bincount(cell[tokens[:, 0], tokens[:, 1]], minlength=48), expected)


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_plain_samples_fit_the_model(draft_tokens: int) -> None:
    tokens, _ = continuations(draft_tokens, "plain")
    first, second = two_tokens()
    assert fit_of_two(tokens, first, second) > 0.01
    single = groups(first, 30)
    expected = torch.zeros(30, dtype=torch.float64).index_add_(0, single, first)
    assert p_value(torch.bincount(single[tokens[:, 0]], minlength=30), expected) > 0.01


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_token_does_not_come_again_too_often(draft_tokens: int) -> None:
    """As it would if two positions shared their noise; the groups are too coarse to see that."""
    tokens, _ = continuations(draft_tokens, "plain")
    first, second = two_tokens()
    again = int((tokens[:, 0] == tokens[:, 1]).sum())
    assert binomtest(again, SEEDS, float((first * second.diagonal()).sum())).pvalue > 0.01


def test_the_fit_sees_a_wrong_distribution() -> None:
    tokens, _ = continuations(3, "plain")
    first, second = two_tokens()
    warmer = torch.softmax(first.log() / 1.3, dim=0)
    assert fit_of_two(tokens, warmer, second) < 1e-4
    assert fit_of_two(tokens, first, second.roll(1, dims=0)) < 1e-4  # after another first token
    twice = torch.cat([tokens[:, :1], tokens[:, :1]], dim=1)  # the first token again
    assert fit_of_two(twice, first, second) < 1e-4


@cache
def three_filtered() -> dict[tuple[int, ...], float]:
    """Every continuation that the filters leave, with its probability."""
    found = {(): 1.0}
    for _ in range(LENGTH):
        logits = next_logits([[*prompt(), *prefix] for prefix in found])
        longer = {}
        for (prefix, p), row in zip(found.items(), logits, strict=True):
            after = filtered(row, **FILTERS["filtered"])
            kept = after.nonzero().flatten().tolist()
            longer |= {(*prefix, token): p * float(after[token]) for token in kept}
        found = longer
    return found


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_filtered_samples_fit_the_model(draft_tokens: int) -> None:
    tokens, _ = continuations(draft_tokens, "filtered")
    expected = three_filtered()
    assert len(expected) > 20
    counts = dict.fromkeys(expected, 0)
    for line in tokens.tolist():
        counts[tuple(line)] += 1  # a KeyError is a token that the filters remove
    assert p_value(list(counts.values()), list(expected.values())) > 0.01


def test_a_seed_is_64_bits_signed_or_not() -> None:
    model = golden_model()
    engine = Engine(*(model.config, model.weights), precision="fp32", plan=SMALL, context=64)

    def run(seed: int) -> list[int]:
        asked = SamplingParams(temperature=1.0, seed=seed, max_tokens=8, ignore_eos=True)
        return [t for step in generate(engine, prompt(), asked) for t in step.token_ids]

    assert run(-1) == run(2**64 - 1)
    assert run(-(2**63)) == run(2**63)
    different = {tuple(run(seed)) for seed in (0, 1, -1, 2**32, 2**63, 2**63 - 1)}
    assert len(different) == 6
