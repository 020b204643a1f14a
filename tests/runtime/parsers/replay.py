"""Token streams through an AnswerParser in any split, and the proof that all splits agree.

`check_every_split` needs no list of splits: if from every state between two tokens a delta of 2, 3
or 4 tokens gives what single tokens give, and leads to the same state, then by induction each split
into deltas of 1 to 4 tokens gives the same.
"""

import codecs
import copy
import enum
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphs.config_json import load_config
from runtime.parsers.answer import Answer, AnswerParser, Delta, ToolCall
from runtime.tokenizer import Tokenizer
from tests.runtime.parsers.recorded import PROMPT, TOOLS, Recorded

NANO = Path(__file__).parents[3] / "models" / "step5-nano"
_config = load_config(NANO)
TOKENIZER = Tokenizer.open(NANO, vocab_size=_config.vocab_size, bos_id=_config.bos_id)
PROMPT_IDS = TOKENIZER.encode(PROMPT)


def encode(text: str) -> list[int]:
    """Ids of an answer, so without BOS."""
    return TOKENIZER.encode(text)[1:]


def make(
    recorded: Recorded | None = None,
    *,
    prompt_ids: Sequence[int] = PROMPT_IDS,
    reasoning: bool = True,
    skip_special: bool = True,
) -> AnswerParser:
    """A parser for this answer, or for one with all tools."""
    return AnswerParser(
        TOKENIZER,
        request_id="r",
        prompt_ids=prompt_ids,
        reasoning=reasoning,
        tools=TOOLS if recorded is None or recorded.has_tools else (),
        tool_choice=recorded.tool_choice if recorded else "auto",
        skip_special=skip_special,
    )


def joined(deltas: Sequence[Delta]) -> Answer:
    """What a client makes of a stream; checks the form of the deltas on the way."""
    calls: list[ToolCall] = []
    for delta in deltas:
        indices = [news.index for news in delta.tool_calls]
        assert indices == sorted(set(indices)), "one delta for each call"
        for news in delta.tool_calls:
            if news.name is not None:
                assert news.index == len(calls), "calls are numbered in order"
                call_id = f"call_r_{news.index}"
                assert news.id == call_id
                calls.append(ToolCall(id=call_id, name=news.name, arguments=""))
            assert news.index == len(calls) - 1, "a call that is over gets no more arguments"
            last = calls[-1]
            calls[-1] = ToolCall(
                id=last.id, name=last.name, arguments=last.arguments + news.arguments
            )
    return Answer(
        reasoning="".join(delta.reasoning for delta in deltas) or None,
        content="".join(delta.content for delta in deltas) or None,
        tool_calls=tuple(calls),
        reasoning_tokens=deltas[-1].reasoning_tokens,
    )


def stream(parser: AnswerParser, ids: Sequence[int], sizes: Iterator[int]) -> list[Delta]:
    """The deltas of one split, that of `finish` last."""
    deltas: list[Delta] = []
    done = 0
    while done < len(ids):
        size = next(sizes)
        deltas.append(parser.push(ids[done : done + size]))
        done += size
    return [*deltas, parser.finish()]


def fork(parser: AnswerParser) -> AnswerParser:
    return copy.deepcopy(parser, {id(TOKENIZER): TOKENIZER})


def state(value: object) -> object:
    """All that a parser holds, comparable."""
    if isinstance(value, codecs.IncrementalDecoder):
        return value.getstate()
    if isinstance(value, dict):
        return {key: state(item) for key, item in value.items()}
    if value is TOKENIZER or isinstance(value, enum.Enum) or not hasattr(value, "__dict__"):
        return value
    return type(value), state(vars(value))


def check_every_split(parser: AnswerParser, ids: Sequence[int]) -> None:
    """See the module's docstring. `parser` is fresh."""
    parsers = [parser]
    deltas: list[Delta] = []
    for token in ids:
        after = fork(parsers[-1])
        deltas.append(after.push([token]))
        parsers.append(after)
    for start in range(len(ids)):
        for size in range(2, min(4, len(ids) - start) + 1):
            parser = fork(parsers[start])
            delta = parser.push(ids[start : start + size])
            before = deltas[:start]
            singly = joined([*before, *deltas[start : start + size]])
            assert joined([*before, delta]) == singly, (start, size)
            assert state(parser) == state(parsers[start + size]), (start, size)
