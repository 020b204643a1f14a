"""Recorded answers say what they say, whole and in every split."""

import itertools
import json

import pytest

from runtime.parsers.answer import Answer
from tests.runtime.parsers.recorded import RECORDED, Recorded
from tests.runtime.parsers.reference import parse
from tests.runtime.parsers.replay import (
    TOKENIZER,
    check_every_split,
    encode,
    joined,
    make,
    stream,
)

each_recorded = pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.name)


def said(answer: Answer) -> tuple[str | None, str | None, list[tuple[str, str]]]:
    calls = [(call.name, call.arguments) for call in answer.tool_calls]
    return answer.reasoning, answer.content, calls


@each_recorded
def test_whole(recorded: Recorded) -> None:
    answer = make(recorded).whole(encode(recorded.text))
    assert said(answer) == (recorded.reasoning, recorded.content, list(recorded.calls))
    for call in answer.tool_calls:
        json.loads(call.arguments)


@each_recorded
@pytest.mark.parametrize("size", [1, 2, 3, 4, 1000])
def test_stream_in_equal_deltas(recorded: Recorded, size: int) -> None:
    ids = encode(recorded.text)
    answer = joined(stream(make(recorded), ids, itertools.repeat(size)))
    calls = list(recorded.calls)
    if recorded.streamed is not None:
        calls[-1] = (calls[-1][0], recorded.streamed)
    assert said(answer) == (recorded.reasoning, recorded.content, calls)


@each_recorded
def test_stream_in_every_split(recorded: Recorded) -> None:
    """Faults I1, I2, I3: arguments, reasoning or a second call lost when tokens come together."""
    check_every_split(make(recorded), encode(recorded.text))


@each_recorded
def test_stream_of_every_single_cut(recorded: Recorded) -> None:
    ids = encode(recorded.text)
    expected = joined(stream(make(recorded), ids, itertools.repeat(1)))
    for cut in range(1, len(ids)):
        sizes = iter([cut, len(ids)])
        assert joined(stream(make(recorded), ids, sizes)) == expected


def test_short_streams_in_every_split_one_by_one() -> None:
    """The induction of `check_every_split`, checked against the list of all splits."""
    ids = encode("a</think>\u4f60<tool_call><function=now></function></tool_call>")
    assert len(ids) <= 16
    expected = make().whole(ids)
    splits = [[]]
    seen = 0
    while splits:
        split = splits.pop()
        if sum(split) == len(ids):
            seen += 1
            assert joined(stream(make(), ids, iter(split))) == expected
            continue
        splits += [[*split, size] for size in range(1, 5) if sum(split) + size <= len(ids)]
    assert seen > 1000


@each_recorded
def test_a_cut_anywhere_is_an_answer(recorded: Recorded) -> None:
    """For each length, streamed and whole agree but for arguments left open, and JSON is JSON."""
    ids = encode(recorded.text)
    for length in range(len(ids)):
        streamed = joined(stream(make(recorded), ids[:length], itertools.repeat(2)))
        whole = make(recorded).whole(ids[:length])
        assert said(streamed)[:2] == said(whole)[:2]
        assert streamed.tool_calls[:-1] == whole.tool_calls[:-1]
        for call, full in zip(streamed.tool_calls[-1:], whole.tool_calls[-1:], strict=True):
            json.loads(full.arguments)
            assert call.arguments == full.arguments or call.arguments.startswith(
                full.arguments[:-1]
            )


@each_recorded
def test_arguments_are_always_a_prefix_of_the_final_json(recorded: Recorded) -> None:
    ids = encode(recorded.text)
    final = list(joined(stream(make(recorded), ids, itertools.repeat(1))).tool_calls)
    parser = make(recorded)
    deltas = []
    for token in ids:
        deltas.append(parser.push([token]))
        for call, whole in zip(joined(deltas).tool_calls, final, strict=False):
            assert call.name == whole.name
            assert whole.arguments.startswith(call.arguments)


@each_recorded
def test_the_state_machine_equals_parsing_by_splitting(recorded: Recorded) -> None:
    text = TOKENIZER.decode(encode(recorded.text))
    answer = make(recorded, reasoning=False).whole(encode(recorded.text))
    if recorded.has_tools and recorded.tool_choice != "none":
        content, calls = parse(text)
        assert said(answer)[1:] == (content or None, calls)
