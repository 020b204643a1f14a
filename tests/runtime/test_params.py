"""Every sampling parameter on whole requests: the same for every K, and nothing left in the slot.

Drafts are foretold, some of them wrong, so that windows of every kind of acceptance occur; the
answers must be those of plain decoding.
"""

import dataclasses
import json
import re
from functools import cache

import numpy as np
import pytest

from graphs.plan import EnginePlan
from runtime.engine import Engine
from runtime.exchange import Turn
from runtime.generate import generate
from runtime.grammar import Grammars
from runtime.request import Constraint, Finish, SamplingParams, Step
from runtime.rules import bits
from runtime.width import FixedWidth
from tests.graphs.whole import golden, golden_model
from tests.runtime.foretold import foretell
from tests.runtime.tiny_grammars import END, EOS_IDS, GRAMMARS, SCHEMA, TOKENIZER, encode

VOCAB = 384
PLAN = EnginePlan(batches=(1, 2), prefill=(64,))


@cache
def shared(draft_tokens: int) -> Engine:
    """One for all requests of a K: what one leaves in the slot must not reach the next."""
    return engine(draft_tokens)


def engine(draft_tokens: int = 3, slots: int = 1) -> Engine:
    model = golden_model()
    assert model.config.vocab_size == TOKENIZER.vocab_size
    assert model.config.stop_ids == EOS_IDS
    return Engine(
        *(model.config, model.weights),
        precision="fp32",
        draft_tokens=draft_tokens,
        plan=PLAN,
        context=256,
        slots=slots,
    )


def prompt() -> list[int]:
    return golden()["prompt_60"].tolist()


def answer(
    made: Engine, params: SamplingParams, grammars: Grammars | None = GRAMMARS
) -> tuple[list[int], str, Finish]:
    steps = list(generate(made, prompt(), params, tokenizer=TOKENIZER, grammars=grammars))
    tokens = [token for step in steps for token in step.token_ids]
    text = "".join(piece for step in steps for piece in step.pieces)
    reason = steps[-1].finish_reason
    assert reason is not None
    return tokens, text, Finish(reason, steps[-1].matched)


def for_every_k(
    monkeypatch: pytest.MonkeyPatch, params: SamplingParams
) -> tuple[list[int], str, Finish]:
    """The answer of plain decoding, which all others must equal."""
    plain = answer(shared(0), params)
    for draft_tokens in (1, 2, 3):
        for wrong in (0, 3):
            made = shared(draft_tokens)
            with monkeypatch.context() as patch:
                foretell(patch, made, prompt(), plain[0], wrong=wrong)
                assert answer(made, params) == plain, (draft_tokens, wrong)
    return plain


HOT = {"temperature": 1.0, "max_tokens": 16, "seed": 3, "ignore_eos": True}
PARAMS: list[dict[str, object]] = [
    {"temperature": 0.0, "presence_penalty": 2.0},
    {"temperature": 0.0, "frequency_penalty": 0.7},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "frequency_penalty": -2.0},
    {"presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    {"logit_bias": {5: 4.0, 6: -100, 9: 4.0}, "top_p": 0.9, "min_p": 0.01, "top_k": 60},
    {"allowed_token_ids": tuple(range(3, 60)), "min_tokens": 9, "ignore_eos": False},
    {"bad_words": ("the", "a", " again"), "allowed_token_ids": tuple(range(40, 330))},
    {"min_tokens": 11, "ignore_eos": False, "logit_bias": dict.fromkeys(EOS_IDS, 100.0)},
    {"stop": ("e", "\u4f60"), "min_tokens": 5, "include_stop_str": True},
    {"choice": 2, "min_p": 0.05},
]


@pytest.mark.parametrize("fields", PARAMS, ids=lambda fields: "+".join(fields))
def test_a_parameter_gives_the_same_answer_for_every_k(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]
) -> None:
    """Faults H2 and H5; the parameter makes a difference at all."""
    params = SamplingParams(**{**HOT, **fields})  # type: ignore[arg-type]
    tokens, *_ = for_every_k(monkeypatch, params)
    neutral = {key: value for key, value in {**HOT, **fields}.items() if key in HOT}
    without = SamplingParams(**neutral)  # type: ignore[arg-type]
    assert tokens != answer(shared(0), without)[0]


def test_penalties_push_what_was_said_away() -> None:
    bias = dict.fromkeys(range(20, 30), 50.0)
    said, _, _ = answer(
        *(engine(3), SamplingParams(max_tokens=10, logit_bias=bias, presence_penalty=2.0)),
    )
    assert set(said) <= set(bias)
    assert len(set(said)) > 1


def test_min_tokens_are_tokens_and_a_stop_follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=20, min_tokens=6, logit_bias=dict.fromkeys(EOS_IDS, 100.0))
    tokens, _, finish = for_every_k(monkeypatch, params)
    assert (len(tokens), finish) == (7, Finish("stop", tokens[-1]))


def test_a_stop_string_ends_at_the_same_token_for_every_k(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault G1, the string ending on each row of a window in turn."""
    free = SamplingParams(max_tokens=20, ignore_eos=True)
    whole, text, _ = answer(shared(0), free)
    for place in range(2, 10):
        stop = TOKENIZER.decode(whole[place : place + 2])
        if not stop or "\ufffd" in stop:
            continue
        params = SamplingParams(max_tokens=20, ignore_eos=True, stop=(stop,))
        tokens, shown, finish = for_every_k(monkeypatch, params)
        assert finish == Finish("stop", stop)
        assert shown == text[: text.index(stop)]
        assert tokens == whole[: len(tokens)]


CONSTRAINTS = [
    Constraint(kind="json_schema", source=SCHEMA),
    Constraint(kind="choice", choices=("yes", "no", "again and again")),
    Constraint(kind="regex", source="[a-z]{5,9}[0-9]{3}"),
]


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: constraint.kind)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constrained_answers_are_legal_and_the_same_for_every_k(
    monkeypatch: pytest.MonkeyPatch, constraint: Constraint, temperature: float
) -> None:
    blanks = {token: -100.0 for token in range(VOCAB) if not TOKENIZER.bytes_of(token).strip()}
    params = SamplingParams(
        temperature=temperature, constraint=constraint, logit_bias=blanks, max_tokens=150
    )
    _, text, finish = for_every_k(monkeypatch, params)
    assert finish == Finish("stop")
    match constraint.kind:
        case "json_schema":
            value = json.loads(text)
            assert list(value) == ["a", "b"]
            assert type(value["a"]) is int
            assert value["b"] in ("x", "caf\u00e9")
        case "choice":
            assert text in constraint.choices
        case _:
            assert re.fullmatch(constraint.source, text)


def test_a_constraint_begins_behind_the_reasoning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault H6: with drafts that are all right, the marker falls on every row of a window."""
    constraint = Constraint(kind="regex", source="[0-9]{4}", after_reasoning=True)
    places = set()
    for seed in range(3):
        params = SamplingParams(
            temperature=1.0,
            seed=seed,
            max_tokens=60,
            ignore_eos=True,
            constraint=constraint,
            allowed_token_ids=(*range(20, 60), END),
            logit_bias={END: 2.0},
        )
        tokens, text, finish = for_every_k(monkeypatch, params)
        places.add(tokens.index(END) % 4)
        assert finish == Finish("stop")
        assert re.search("</think>[0-9]{4}$", text)
    assert len(places) > 1


class Noting(FixedWidth):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(count=3)
        self.told: list[tuple[int, int]] = []

    def verified(self, drafted: int, accepted: int) -> None:
        self.told.append((drafted, accepted))


def noted(
    monkeypatch: pytest.MonkeyPatch, params: SamplingParams, drafts: list[int], *, wrong: int = 0
) -> tuple[list[tuple[int, int]], list[Step]]:
    """What the policy was told, and the steps."""
    made, policy = shared(3), Noting()
    with monkeypatch.context() as patch:
        foretell(patch, made, prompt(), drafts, wrong=wrong)
        _, *steps = generate(
            *(made, prompt(), params), policy=policy, tokenizer=TOKENIZER, grammars=GRAMMARS
        )
    return policy.told, steps


def test_the_policy_is_told_of_every_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault J5: of those that the rules forbid as well, which no step verifies."""
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    told, steps = noted(monkeypatch, params, answer(shared(0), params)[0], wrong=3)
    assert told[:-1] == [(3, step.accepted) for step in steps[:-1]]  # the last one is cut
    assert len(set(told)) > 1
    digits = dataclasses.replace(params, constraint=Constraint(kind="regex", source="[0-9]{9}"))
    told, steps = noted(monkeypatch, digits, encode("x") * 20)
    assert not any(step.drafted for step in steps)
    assert told == [(3, 0)] * len(steps)


def test_the_answers_of_one_request_differ_and_repeat() -> None:
    params = SamplingParams(n=3, temperature=1.0, max_tokens=12, seed=4, ignore_eos=True)
    made = engine()
    answers = [answer(made, each) for each in params.answers()]
    assert len({tuple(tokens) for tokens, *_ in answers}) == 3
    assert [answer(made, each) for each in params.answers()] == answers
    with pytest.raises(ValueError, match=r"n = 3: one answer at a time"):
        answer(made, params)


def test_nothing_of_a_request_stays_in_its_slot() -> None:
    """Bias, mask, penalties: the next request in the slot is as in a fresh engine."""
    made = engine()
    loaded = SamplingParams(
        max_tokens=6,
        logit_bias={5: 50.0},
        allowed_token_ids=(5, 6, 7),
        presence_penalty=2.0,
        repetition_penalty=2.0,
    )
    assert set(answer(made, loaded)[0]) <= {5, 6, 7}
    plain = SamplingParams(max_tokens=12, ignore_eos=True)
    assert answer(made, plain) == answer(engine(), plain)
    other = SamplingParams(max_tokens=12, ignore_eos=True, logit_bias={9: 1.0})
    assert answer(made, other) == answer(engine(), other)


def test_a_mask_is_its_own_slots_alone() -> None:
    made = engine(slots=2)
    first = [made.prefill(prompt(), slot, SamplingParams()) for slot in (0, 1)]
    turns = [
        Turn(slot=slot, position=len(prompt()), token=each.tokens[0], drafts=each.drafts)
        for slot, each in enumerate(first)
    ]
    free = engine(slots=2)
    for slot in (0, 1):
        free.prefill(prompt(), slot, SamplingParams())
    both = free.decode(turns)
    mask = np.stack([bits([11], VOCAB)] * 4)
    alone, forced = made.decode([turns[0], dataclasses.replace(turns[1], mask=mask)])
    assert alone == both[0]
    assert forced.tokens == (11,)
