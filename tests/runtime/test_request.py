"""Ranges of every parameter, each refused by name; limits on counts; nothing changes afterwards."""

import copy
import dataclasses
import pickle

import pytest
import torch

from runtime import request
from runtime.request import Constraint, ParamsError, SamplingParams, check_ids

NAN, INF = float("nan"), float("inf")

NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
NUMBERS += ("repetition_penalty",)

REFUSED = [
    *((field, value) for field in NUMBERS for value in (3.41e38, -1e308, 10**400)),
    *(("temperature", -0.1), ("temperature", NAN), ("temperature", INF), ("temperature", "1")),
    *(("top_k", -1), ("top_k", 2**63), ("top_k", 1.5), ("top_p", 0.0), ("top_p", 1.1)),
    *(("min_p", -0.1), ("min_p", 1.1), ("min_p", NAN)),
    *(("presence_penalty", 2.1), ("presence_penalty", -2.1), ("frequency_penalty", 2.1)),
    *(("frequency_penalty", NAN), ("repetition_penalty", 0.0), ("repetition_penalty", 11)),
    ("repetition_penalty", 0.015),
    *(("logit_bias", [1]), ("logit_bias", {1: 101}), ("logit_bias", {1: NAN})),
    *(("logit_bias", {-1: 1.0}), ("logit_bias", {1.5: 1.0}), ("logit_bias", {1: "1"})),
    ("logit_bias", dict.fromkeys(range(request.MAX_BIAS_ENTRIES + 1), 1.0)),
    *(("allowed_token_ids", ()), ("allowed_token_ids", (-1,)), ("allowed_token_ids", [1])),
    *(("bad_words", ("",)), ("bad_words", "abc"), ("bad_words", (1,))),
    ("bad_words", ("a",) * (request.MAX_BAD_WORDS + 1)),
    ("bad_words", ("a" * (request.MAX_BAD_WORD_CHARS + 1),)),
    *(("seed", 2**64), ("seed", -(2**63) - 1), ("seed", True)),
    *(("n", 0), ("n", request.MAX_ANSWERS + 1), ("choice", -1), ("choice", 2**31)),
    *(("max_tokens", 0), ("max_tokens", 1.0), ("min_tokens", -1), ("min_tokens", 257)),
    *(("stop", "abc"), ("stop", ("",)), ("stop", ("a",) * (request.MAX_STOP_STRINGS + 1))),
    ("stop", ("a" * (request.MAX_STOP_CHARS + 1),)),
    *(("stop_token_ids", (-1,)), ("stop_token_ids", (True,)), ("stop_token_ids", [1])),
    ("stop_token_ids", tuple(range(request.MAX_STOP_IDS + 1))),
    *(("logprobs", -1), ("logprobs", 21), ("logprobs", True), ("prompt_logprobs", 21)),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_parameters_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{field} = .*: must be "):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_every_range_holds_its_ends() -> None:
    for edge in (
        *({"top_k": 2**63 - 1}, {"top_p": 1}, {"min_p": 1}, {"seed": 2**64 - 1}),
        {"temperature": torch.finfo(torch.float32).max},
        *({"seed": -(2**63)}, {"presence_penalty": -2}, {"repetition_penalty": 10}),
        {"repetition_penalty": 1 / 64},
        *({"logit_bias": {0: -100, 7: 100.0}}, {"min_tokens": 256}, {"logprobs": 0}),
        *({"prompt_logprobs": 20}, {"n": request.MAX_ANSWERS}, {"allowed_token_ids": (0,)}),
        *({"stop": ("a",) * request.MAX_STOP_STRINGS}, {"max_tokens": 2**40}),
    ):
        SamplingParams(**edge)  # type: ignore[arg-type]


def test_a_long_value_is_not_repeated_in_the_message() -> None:
    with pytest.raises(ValueError, match="stop") as refusal:
        SamplingParams(stop=("a" * 10_000,))
    assert len(str(refusal.value)) < 200


def test_a_bias_cannot_change_after_it_was_checked() -> None:
    given = {5: 1.0}
    params = SamplingParams(logit_bias=given)
    given[5] = NAN
    assert params.logit_bias == {5: 1.0}
    with pytest.raises(TypeError):
        params.logit_bias[5] = NAN  # type: ignore[index]
    assert dataclasses.replace(params, seed=1).logit_bias == {5: 1.0}
    assert hash(params) == hash(SamplingParams(logit_bias={5: 1.0}))


def test_answers_differ_in_their_choice_alone() -> None:
    params = SamplingParams(n=3, choice=4, seed=9, top_k=5)
    answers = params.answers()
    assert [answer.choice for answer in answers] == [4, 5, 6]
    assert {dataclasses.replace(answer, n=3, choice=4) for answer in answers} == {params}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(logit_bias={384: 1.0}), "logit_bias"),
        (SamplingParams(allowed_token_ids=(3, 384)), "allowed_token_ids"),
        (SamplingParams(stop_token_ids=(384,)), "stop_token_ids"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(params: SamplingParams, field: str) -> None:
    check_ids(params, 385)
    with pytest.raises(ValueError, match=rf"{field}: token 384 is outside 0\.\.383"):
        check_ids(params, 384)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "xml", "source": "a"}, "kind"),
        ({"kind": "regex"}, "source"),
        ({"kind": "json_object", "source": "{}"}, "source"),
        ({"kind": "ebnf", "source": "a" * (request.MAX_SOURCE_CHARS + 1)}, "source"),
        ({"kind": "choice"}, "choices"),
        ({"kind": "choice", "choices": ("",)}, "choices"),
        ({"kind": "choice", "choices": ("a",) * (request.MAX_CHOICES + 1)}, "choices"),
        ({"kind": "choice", "choices": ("a" * 2**15,) * 3}, "choices"),
        ({"kind": "regex", "source": "a", "choices": ("a",)}, "choices"),
    ],
)
def test_constraints_out_of_range_are_named(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named} = .*: must be "):
        Constraint(**fields)  # type: ignore[arg-type]


def test_a_copy_of_what_is_wrong_says_the_same() -> None:
    """A thread's error may reach who asked as a copy, and processes' do."""
    with pytest.raises(ParamsError) as caught:
        SamplingParams(top_p=2, top_k=-1)
    error = caught.value
    for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert str(same) == str(error)
        assert same.wrong == error.wrong
