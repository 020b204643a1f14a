"""One answer from tokens to reasoning, content and tool calls, step by step or whole.

Knows the order of the parts and how they are counted; does not know transports or what finished the
request. Keeps true: tokens are taken one by one, so how they were cut into steps does not show; the
deltas, joined, are the whole answer (one exception: `AnswerParser.whole`); nothing raises, whatever
the model wrote. Architecture sections 7.3 and 7.4.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from runtime.parsers.reasoning import Markers
from runtime.parsers.tools import ToolDelta, ToolParser, ToolPieces
from runtime.tokenizer import Detokenizer, Tokenizer

ToolChoice = Literal["none", "auto", "required"]


@dataclass(frozen=True, kw_only=True)
class Delta:
    """What one step adds; at most one delta for each call. `reasoning_tokens` counts all so far."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolDelta, ...] = ()
    reasoning_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call with its arguments as JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole answer; None for a part that is empty."""

    reasoning: str | None
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    reasoning_tokens: int


@dataclass(frozen=True)
class _Piece:
    """Text of one token, whether it is before the end of thinking, and if it is a marker there."""

    text: str
    thinking: bool
    marker: bool = False


class AnswerParser:
    """Parses one answer.

    Everything up to `</think>` is reasoning, a `<think>` in front of it is dropped, and nothing is
    trimmed. Thinking starts in the prompt, or with an answer that begins with `<think>`. A
    `</think>` that comes again, with nothing but blanks since the last part ended, is dropped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        request_id: str,
        prompt_ids: Sequence[int] = (),
        reasoning: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: ToolChoice = "auto",
        skip_special: bool = True,
    ) -> None:
        """`tools` are JSON function schemas; without any, calls are not looked for.

        With tool_choice "none" calls are recognised and left out. A call's id is made of
        `request_id` and its index. Raises TokenizerError where the tokenizer lacks a marker.
        """
        markers = Markers.of(tokenizer, tools=bool(tools)) if reasoning else None
        self._markers = markers
        self._thinking = markers is not None and markers.starts_thinking(prompt_ids)
        self._tools = ToolParser(tools, request_id=request_id) if tools else None
        self._shows_calls = tool_choice != "none"
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._tokenizer = tokenizer
        self._started = False
        self._reasoning_tokens = 0
        self._waiting: deque[_Piece] = deque()
        self._allowed: float = 0  # how many characters of the waiting pieces may be shown
        self._blank = True  # nothing but blanks in the content since the last part ended

    def push(self, token_ids: Sequence[int], text: str | None = None) -> Delta:
        """What one step adds.

        `text`: what may be shown by now and not before, where stop strings hold text back
        (Step.pieces, joined); it says how much, not what. None is everything.
        """
        for token in token_ids:
            self._waiting.extend(self._read(token))
        self._allowed += math.inf if text is None else len(text)
        return self._delta(self._released())

    def finish(self) -> Delta:
        """What was still held back and may be shown. The answer is over after this."""
        self._waiting.append(_Piece(self._detokenizer.finish(), self._thinking))
        pieces = self._released()
        if self._waiting:  # a stop string begins inside this piece
            cut = self._waiting.popleft()
            pieces.append(_Piece(cut.text[: int(self._allowed)], cut.thinking))
        shown = self._delta(pieces)
        if self._tools is None:
            return shown
        last = self._tools.finish()
        return replace(
            shown,
            content=shown.content + last.content,
            tool_calls=self._calls([*shown.tool_calls, *last.deltas]),
        )

    def whole(self, token_ids: Sequence[int], text: str | None = None) -> Answer:
        """All of an answer at once, in place of `push` and `finish`.

        Where the answer was cut inside a value, the deltas leave the arguments unterminated; here
        they end before that value, so that they are JSON.
        """
        first, last = self.push(token_ids, text), self.finish()
        calls = [
            ToolCall(id=delta.id or "", name=delta.name or "", arguments=delta.arguments)
            for delta in self._calls([*first.tool_calls, *last.tool_calls])
        ]
        if calls and self._tools and (extra := self._tools.unfinished):
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments[:-extra] + "}")
        return Answer(
            reasoning=first.reasoning + last.reasoning or None,
            content=first.content + last.content or None,
            tool_calls=tuple(calls),
            reasoning_tokens=last.reasoning_tokens,
        )

    def _read(self, token: int) -> Iterator[_Piece]:
        """The text of a token; before it, at a marker, that of an incomplete character."""
        opens = not self._started and self._markers is not None and token == self._markers.begin
        self._started = True
        self._thinking = self._thinking or opens
        thinking, marker = self._thinking, opens
        if self._markers is not None and not opens:
            marker = token == self._markers.end
            end = self._markers.thinking_end([token]) if thinking else None
            if end is not None or marker:
                yield _Piece(self._detokenizer.finish(), thinking)
            if end is not None:
                thinking, self._thinking = end > 0, False
        self._reasoning_tokens += thinking and not marker and not self._tokenizer.is_special(token)
        yield _Piece(self._detokenizer.push(token), thinking, marker)

    def _released(self) -> list[_Piece]:
        pieces: list[_Piece] = []
        while self._waiting and len(self._waiting[0].text) <= self._allowed:
            pieces.append(self._waiting.popleft())
            self._allowed -= len(pieces[-1].text)
        return pieces

    def _delta(self, pieces: Iterable[_Piece]) -> Delta:
        reasoning: list[str] = []
        content: list[str] = []
        deltas: list[ToolDelta] = []
        for piece in pieces:
            if not piece.thinking:
                news = self._behind_reasoning(piece)
                content.append(news.content)
                deltas.extend(news.deltas)
            elif not piece.marker:
                reasoning.append(piece.text)
        return Delta(
            reasoning="".join(reasoning),
            content="".join(content),
            tool_calls=self._calls(deltas),
            reasoning_tokens=self._reasoning_tokens,
        )

    def _behind_reasoning(self, piece: _Piece) -> ToolPieces:
        if piece.marker and self._blank and not self._in_call:
            return ToolPieces(content="", deltas=())
        if self._tools is None:
            news = ToolPieces(content=piece.text, deltas=())
        else:
            news = self._tools.push(piece.text)
        if self._in_call:
            self._blank = True
        elif news.content.strip():
            self._blank = False
        return news

    @property
    def _in_call(self) -> bool:
        return self._tools is not None and self._tools.in_call

    def _calls(self, deltas: Iterable[ToolDelta]) -> tuple[ToolDelta, ...]:
        """One delta for each call, none if they are not to be shown."""
        if not self._shows_calls:
            return ()
        merged: list[ToolDelta] = []
        for index, same in itertools.groupby(deltas, key=lambda delta: delta.index):
            first, *rest = same
            arguments = "".join(delta.arguments for delta in (first, *rest))
            merged.append(ToolDelta(index=index, id=first.id, name=first.name, arguments=arguments))
        return tuple(merged)
