"""Rules of a window: each row as if its drafts had been committed, for every rule at once.

The walk below is a whole decode loop on a model of random logits: rows are drawn where the masks
let them, drafts are right or wrong by turns. What comes out must not depend on K.
"""

import json
import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.exchange import Mask
from runtime.grammar import GrammarError
from runtime.request import Constraint, Finish, SamplingParams
from runtime.stop import Scanner
from tests.runtime.tiny_grammars import (
    END,
    EOS,
    EOS_IDS,
    SCHEMA,
    TOKENIZER,
    ids,
    rules,
)
from tests.runtime.tiny_tokenizer import VOCAB_SIZE

BLANKS = [token for token in range(VOCAB_SIZE) if not TOKENIZER.bytes_of(token).strip()]
JSON = Constraint(kind="json_schema", source=SCHEMA)
DIGITS = Constraint(kind="regex", source="[0-9]+")


def draw(mask: Mask | None, row: int, seed: int, place: int) -> int:
    """What a model of random logits draws at a place, as the engine does it; seldom a blank, of
    which JSON allows any number."""
    score = np.random.default_rng((seed, place)).random(VOCAB_SIZE)
    score[BLANKS] *= 0.2
    return max(ids(mask, row), key=lambda token: score[token])


def answer(
    params: SamplingParams, seed: int, width: int, known: Sequence[int] = ()
) -> tuple[list[int], str, Finish]:
    """Tokens, text and end with windows of `width` drafts, taken from `known`, some replaced."""
    made = rules(params)
    scanner = Scanner(params, eos_ids=EOS_IDS, tokenizer=TOKENIZER)
    noise = random.Random(seed)
    out: list[int] = []
    text = ""
    while True:
        place = len(out)
        drafts = [
            token if noise.random() < 0.8 else noise.randrange(VOCAB_SIZE)
            for token in known[place : place + width]
        ]
        kept, mask = made.window(drafts)
        assert mask is None or (len(mask) == 1 + kept and (mask != 0).any(1).all())
        drafts = drafts[:kept]
        tokens = [draw(mask, 0, seed, place)]
        while len(tokens) <= kept and tokens[-1] == drafts[len(tokens) - 1]:
            tokens.append(draw(mask, len(tokens), seed, place + len(tokens)))
        scanned = scanner.push(tokens, ended=made.commit(tokens))
        out += scanned.token_ids
        text += "".join(scanned.pieces)
        if scanned.finish:
            return out, text, scanned.finish


CONSTRAINTS = st.one_of(
    st.none(),
    st.sampled_from([JSON, DIGITS]),
    st.sampled_from(["[a-f]{3}", "(ab)*", "[a-d]+(</think>)?x"]).map(
        lambda source: Constraint(kind="regex", source=source, after_reasoning=True)
    ),
    st.just(Constraint(kind="choice", choices=("yes", "no", "yes and no"))),
)
IDS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=60, unique=True)


@st.composite
def requests(draw_from: st.DrawFn) -> SamplingParams:
    allowed = draw_from(st.one_of(st.none(), IDS))
    return SamplingParams(
        max_tokens=30,
        min_tokens=draw_from(st.integers(0, 6)),
        # The end of the reasoning and of the answer are in, so that both come up.
        allowed_token_ids=None if allowed is None else tuple({*allowed, END, EOS, *range(64, 90)}),
        bad_words=tuple(draw_from(st.lists(st.sampled_from(["a", "ab", "caf\u00e9", "12"])))),
        stop_token_ids=tuple(draw_from(st.lists(st.sampled_from([66, 67, 300]), unique=True))),
        ignore_eos=draw_from(st.booleans()),
        constraint=draw_from(CONSTRAINTS),
    )


@settings(max_examples=80, deadline=None)
@given(params=requests(), seed=st.integers(0, 1000))
def test_an_answer_does_not_depend_on_the_window(params: SamplingParams, seed: int) -> None:
    try:
        plain = answer(params, seed, 0)
    except GrammarError:
        return
    for width in (1, 2, 3):
        assert answer(params, seed, width, plain[0]) == plain


@settings(max_examples=30, deadline=None)
@given(params=requests(), seed=st.integers(0, 1000), width=st.integers(1, 3))
def test_each_row_is_what_row_0_is_later(params: SamplingParams, seed: int, width: int) -> None:
    """Row k of a window forbids what row 0 forbids once the drafts before it are committed."""
    try:
        tokens, _, _ = answer(params, seed, 0)
    except GrammarError:
        return
    later = rules(params)
    expected = []
    for token in tokens:
        expected.append(ids(later.window(())[1], 0))
        later.commit([token])
    for place in range(0, len(tokens), width):
        made = rules(params)
        if place:
            made.commit(tokens[:place])
        kept, mask = made.window(tokens[place : place + width])
        assert kept == len(tokens[place : place + width])
        for row in range(min(kept + 1, len(tokens) - place)):
            assert ids(mask, row) == expected[place + row]


# Random schemas of what a small validator can check: closed objects, arrays, enums, scalars.
SCALARS = st.sampled_from(
    [{"type": "boolean"}, {"type": "null"}, {"enum": ["a", 1, None]}, {"const": {"k": [True]}}]
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(
            lambda item, most: {"type": "array", "items": item, "maxItems": most},
            *(inner, st.integers(0, 3)),
        ),
        st.dictionaries(st.sampled_from(["a", "b", "\u4f60"]), inner, max_size=3).map(
            lambda fields: {
                "type": "object",
                "properties": fields,
                "required": sorted(fields)[:2],
                "additionalProperties": False,
            }
        ),
    ),
    max_leaves=5,
)


def valid(value: object, schema: dict[str, object]) -> bool:
    match schema, value:
        case {"enum": list(values)}, _:
            return value in values
        case {"const": const}, _:
            return value == const
        case {"type": "array", "items": item, "maxItems": most}, [*values]:
            return len(values) <= most and all(valid(v, item) for v in values)  # type: ignore[arg-type, operator]
        case {"type": "object", "properties": fields, "required": required}, {**given_fields}:
            known = all(
                key in fields and valid(v, fields[key])  # type: ignore[index, operator]
                for key, v in given_fields.items()
            )
            return known and set(required) <= set(given_fields)  # type: ignore[call-overload]
        case {"type": "boolean"}, bool():
            return True
        case {"type": "null"}, None:
            return True
    return False


@settings(max_examples=40, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 100), width=st.integers(0, 3))
def test_answers_under_a_random_schema_parse(
    schema: dict[str, object], seed: int, width: int
) -> None:
    constraint = Constraint(kind="json_schema", source=json.dumps(schema))
    params = SamplingParams(max_tokens=400, constraint=constraint)
    plain = answer(params, seed, 0)
    tokens, text, finish = answer(params, seed, width, plain[0])
    assert (tokens, text, finish) == plain
    assert finish == Finish("stop")
    assert valid(json.loads(text), schema)
