"""Any text, any tokens, any split: nothing raises, and stream, whole and reference agree."""

import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.parsers.tools import ToolDelta, ToolParser
from tests.runtime.parsers.recorded import TOOLS
from tests.runtime.parsers.reference import parse
from tests.runtime.parsers.replay import TOKENIZER, check_every_split, encode, joined, make, stream

FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"),
    *("<function=weather>", "<function=plan>\n", "<function=now", "<parameter=city>\n", "days>"),
    *("<parameter=note>", "<parameter=weight>", "<parameter=route>", "<parameter = tags >", ">"),
    *("\n", "\n\n", " ", "null", "true", "1", "-2.5e3", "NaN", '{"stops": ["7"]}', "[1, 2", "]"),
    *("<", "</", "<para", "</function", "<function ", '"', "\\", "\\ud800", "a", "\u4f60"),
    *("<think>", "</think>", "<|im_end|>", "\U0001f600", "\ufffd", "\x00", "]}", "e\u0301"),
]
texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=30).map(
    "".join
)
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=20)
any_ids = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=60)


def check_stream_equals_whole(ids: list[int], split: list[int]) -> None:
    streamed = joined(stream(make(), ids, itertools.cycle(split)))
    whole = make().whole(ids)
    assert (streamed.reasoning, streamed.content) == (whole.reasoning, whole.content)
    assert streamed.reasoning_tokens == whole.reasoning_tokens <= len(ids)
    assert streamed.tool_calls[:-1] == whole.tool_calls[:-1]
    for call, full in zip(streamed.tool_calls[-1:], whole.tool_calls[-1:], strict=True):
        assert call.arguments == full.arguments or call.arguments.startswith(full.arguments[:-1])
    for call in whole.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)
        call.arguments.encode()


@given(texts, sizes)
@settings(deadline=None)
def test_any_text_in_any_split(text: str, split: list[int]) -> None:
    check_stream_equals_whole(encode(text), split)


@given(any_ids, sizes)
@settings(deadline=None)
def test_any_tokens_in_any_split(ids: list[int], split: list[int]) -> None:
    check_stream_equals_whole(ids, split)


@given(texts)
@settings(deadline=None, max_examples=20)
def test_any_text_in_every_split(text: str) -> None:
    check_every_split(make(), encode(f"</think>{text}"))


@given(texts)
@settings(deadline=None, max_examples=500)
def test_the_state_machine_equals_parsing_by_splitting(text: str) -> None:
    ids = encode(text)
    content, calls = parse(TOKENIZER.decode(ids))
    answer = make(reasoning=False).whole(ids)
    assert answer.content == (content or None)
    assert [(call.name, call.arguments) for call in answer.tool_calls] == calls


def parse_in_pieces(text: str, cuts: list[int]) -> tuple[str, str]:
    """Content, and all news of calls as one text; the tool parser alone, cut between characters."""
    parser = ToolParser(TOOLS, request_id="r")
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [parser.push(text[a:b]) for a, b in itertools.pairwise(bounds)]
    pieces.append(parser.finish())
    return "".join(piece.content for piece in pieces), "".join(
        news(delta) for piece in pieces for delta in piece.deltas
    )


def news(delta: ToolDelta) -> str:
    return f"{delta.id}: {delta.name}" * (delta.name is not None) + delta.arguments


@given(texts, st.lists(st.integers(0, 200), max_size=40))
@settings(deadline=None, max_examples=300)
def test_any_cut_between_characters(text: str, cuts: list[int]) -> None:
    assert parse_in_pieces(text, cuts) == parse_in_pieces(text, [])
    assert parse_in_pieces(text, list(range(len(text)))) == parse_in_pieces(text, [])
