"""Constraints compiled by llguidance: what each kind allows, when it ends, what is refused."""

import json
import random

import llguidance
import pytest

from runtime import grammar
from runtime.grammar import GrammarError, Grammars, Matcher
from runtime.request import Constraint, ConstraintKind
from tests.runtime.tiny_grammars import EOS_IDS, GRAMMARS, SCHEMA, TOKENIZER, encode, members
from tests.runtime.tiny_tokenizer import VOCAB_SIZE

TAGS = json.dumps(
    {
        "triggers": ["<tool_call>"],
        "structures": [
            {"begin": "<tool_call>f", "schema": {"type": "boolean"}, "end": "</tool_call>"},
            {"begin": "<tool_call>g", "schema": {"type": "null"}, "end": "</tool_call>"},
        ],
    }
)


def make(kind: ConstraintKind, source: str = "", choices: tuple[str, ...] = ()) -> Matcher:
    return GRAMMARS.matcher(Constraint(kind=kind, source=source, choices=choices))


def ids(matcher: Matcher) -> set[int]:
    return members(matcher.allowed())


def takes(matcher: Matcher, text: str) -> bool:
    """Whether every token of the text is allowed in its turn; leaves the matcher behind it."""
    for token in encode(text):
        if matcher.ended or token not in ids(matcher):
            return False
        matcher.advance(token)
    return True


GOOD_BAD: list[tuple[tuple[ConstraintKind, str, tuple[str, ...]], str, str]] = [
    (("json_schema", SCHEMA, ()), '{"a": -12, "b": "caf\u00e9"}', '{"a": "1"'),
    (("json_object", "", ()), '{"q": [1, null]}', "[1"),
    (("regex", "[0-9]{2}(a|\u4f60\u597d)", ()), "12\u4f60\u597d", "12b"),
    (("ebnf", 'start: "x" NUM "y"\nNUM: /[0-9]/', ()), "x7y", "xy"),
    (("ebnf", 'root ::= "x" [0-9] "y"', ()), "x7y", "xy"),
    (("choice", "", ("yes", 'n"o\\\n\U0001f600')), 'n"o\\\n\U0001f600', "ye\n"),
    (("structural_tag", TAGS, ()), "words <tool_call>ftrue</tool_call> more", "<tool_call>h"),
]


@pytest.mark.parametrize(("fields", "good", "bad"), GOOD_BAD)
def test_each_kind_allows_its_own_text_alone(
    fields: tuple[ConstraintKind, str, tuple[str, ...]], good: str, bad: str
) -> None:
    matcher = make(*fields)
    assert not matcher.accepting or fields[0] == "structural_tag"
    assert takes(matcher, good)
    assert matcher.accepting
    assert matcher.ended == (fields[0] != "structural_tag")
    assert not takes(make(*fields), bad)


def test_where_an_answer_may_end_or_go_on_it_accepts_without_ending() -> None:
    matcher = make("regex", "[0-9]+")
    assert not matcher.accepting
    assert takes(matcher, "12")
    assert (matcher.accepting, matcher.ended) == (True, False)
    assert takes(matcher, "3")


@pytest.mark.parametrize("fields", [fields for fields, *_ in GOOD_BAD])
def test_ids_without_text_special_and_stop_ids_are_never_allowed(
    fields: tuple[ConstraintKind, str, tuple[str, ...]],
) -> None:
    """Padding ids behind the tokenizer's own among them (376 is a stop id as well)."""
    textless = {token for token in range(VOCAB_SIZE) if not TOKENIZER.bytes_of(token)}
    special = {token for token in range(VOCAB_SIZE) if TOKENIZER.is_special(token)}
    assert 380 in textless
    assert special
    draw = random.Random(3)
    matcher = make(*fields)
    for _ in range(60):
        if matcher.ended:
            break
        found = ids(matcher)
        assert not found & (textless | special | set(EOS_IDS))
        if not found:
            break
        matcher.advance(draw.choice(sorted(found)))


@pytest.mark.parametrize("fields", [fields for fields, *_ in GOOD_BAD])
def test_rolled_back_is_as_never_advanced(
    fields: tuple[ConstraintKind, str, tuple[str, ...]],
) -> None:
    """Across the end of the constraint too."""
    draw = random.Random(5)
    for _ in range(20):
        moved, still = make(*fields), make(*fields)
        path: list[int] = []
        while not moved.ended and len(path) < 40:
            allowed = sorted(ids(moved))
            if not allowed:
                break
            path.append(draw.choice(allowed))
            moved.advance(path[-1])
        keep = draw.randrange(len(path) + 1)
        moved.rollback(len(path) - keep)
        for token in path[:keep]:
            still.advance(token)
        assert (moved.ended, moved.accepting) == (still.ended, still.accepting)
        if not still.ended:
            assert ids(moved) == ids(still)


def test_matchers_of_one_constraint_do_not_share_their_place() -> None:
    one, other = make("regex", "ab"), make("regex", "ab")
    assert takes(one, "a")
    assert takes(other, "ab")
    assert takes(one, "b")


def test_only_so_many_compiled_constraints_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "CACHED", 2)
    made, compiled = Grammars(TOKENIZER, eos_ids=EOS_IDS), []
    compile_one = made._compile
    monkeypatch.setattr(made, "_compile", lambda c: compiled.append(c.source) or compile_one(c))
    for source in "abacab":
        made.matcher(Constraint(kind="regex", source=source))
    assert compiled == ["a", "b", "c", "b"]


@pytest.mark.parametrize(("kind", "source"), [("json_schema", SCHEMA), ("json_object", "")])
def test_json_behind_reasoning_may_begin_with_a_line_break(
    kind: ConstraintKind, source: str
) -> None:
    def made(*, after: bool) -> Matcher:
        constraint = Constraint(kind=kind, source=source, after_reasoning=after)
        return GRAMMARS.matcher(constraint)

    text = '{"a": -12, "b": "x"}'
    for allowed in (f"\n{text}", text):
        matcher = made(after=True)
        assert takes(matcher, allowed)
        assert matcher.accepting
    assert not takes(made(after=True), f"\n\n{text}")
    assert not takes(made(after=False), f"\n{text}")


@pytest.mark.parametrize("source", ["{", "false", '{"not": {}}', '{"type": "nothing"}'])
def test_json_behind_reasoning_is_refused_as_elsewhere(source: str) -> None:
    for after in (True, False):
        constraint = Constraint(kind="json_schema", source=source, after_reasoning=after)
        with pytest.raises(GrammarError, match=r"^constraint json_schema: "):
            GRAMMARS.matcher(constraint)


# A text of 2^22 letters.
DOUBLING = "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(22)) + 'A22: "a"\nstart: A0\n'
REFUSED: list[tuple[ConstraintKind, str, str]] = [
    ("regex", "(", "unclosed group"),
    ("regex", "[^\\s\\S]", ""),  # no text matches
    ("regex", "(" * 20_000 + "a" + ")" * 20_000, "invalid regex"),
    ("json_schema", "{", ""),
    ("json_schema", "[1]", ""),
    ("json_schema", "false", "Unsatisfiable"),
    ("json_schema", '{"not": {}}', "not"),
    ("json_schema", '{"$ref": "http://x/y"}', ""),
    ("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000, "recursion limit"),
    ("ebnf", "start: nothing", ""),
    ("ebnf", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested"),
    ("ebnf", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "recursion"),
    ("ebnf", DOUBLING, "too big"),
    ("structural_tag", "[", ""),
    ("structural_tag", "[]", "expected"),
    ("structural_tag", '{"triggers": ["<"], "structures": []}', "expected"),
    ("structural_tag", '{"triggers": ["<"], "structures": [{"begin": "<"}]}', "expected"),
    (
        "structural_tag",
        '{"triggers": ["<a"], "structures": [{"begin": "<b", "schema": {}, "end": ""}]}',
        "no trigger",
    ),
]


@pytest.mark.parametrize(("kind", "source", "message"), REFUSED)
def test_what_cannot_be_compiled_is_refused_in_one_line(
    kind: ConstraintKind, source: str, message: str
) -> None:
    with pytest.raises(GrammarError, match=f"^constraint {kind}: .*{message}") as refusal:
        make(kind, source)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("limits", [{"step_lexer_fuel": 20}, {"max_lexer_states": 4}])
def test_a_step_that_costs_too_much_is_an_error(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    constraint, text = Constraint(kind="json_schema", source=SCHEMA), '{"a": -12, "b": "x"}'
    assert takes(GRAMMARS.matcher(constraint), text)
    tight = llguidance.LLParserLimits(**limits, verbose_errors=False)  # type: ignore[arg-type]
    monkeypatch.setattr(grammar, "LIMITS", tight)
    with pytest.raises(GrammarError, match=r"^constraint"):
        takes(Grammars(TOKENIZER, eos_ids=()).matcher(constraint), text)
