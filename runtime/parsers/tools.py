"""Tool calls out of a text, in the XML grammar that the family shares with qwen3-coder.

Knows the states of the grammar and what is forgiven: a call without `<tool_call>`, missing closing
tags, tags where a name should end. Does not know tokens. Keeps true: how the text was cut into
pieces does not show, nothing raises, and a call's name goes out before its arguments.
Architecture section 7.4.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.parsers.arguments import Parameters
from runtime.parsers.tags import Tag, TagScanner
from runtime.parsers.writer import ArgumentsWriter


@dataclass(frozen=True, kw_only=True)
class ToolDelta:
    """News of one call: `id` and `name` in its first delta alone, then more of its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolPieces:
    """Text outside calls, and news of calls; deltas of one call may follow one another."""

    content: str
    deltas: tuple[ToolDelta, ...]


class _State(enum.Enum):
    CONTENT = enum.auto()
    PREAMBLE = enum.auto()  # behind <tool_call>
    NAME = enum.auto()  # behind <function=
    ARGS = enum.auto()  # between parameters
    KEY = enum.auto()  # behind <parameter=
    VALUE = enum.auto()
    BETWEEN = enum.auto()  # behind </function>


_OPEN = {_State.NAME, _State.ARGS, _State.KEY, _State.VALUE}


class ToolParser:
    """One answer's text behind the reasoning.

    All text outside calls is content, blank or not; text inside a call that is no part of the
    grammar is dropped. A tag ends an open call wherever it stands, also inside a value.
    """

    def __init__(self, tools: Iterable[Mapping[str, Any]], *, request_id: str) -> None:
        self._tools = Parameters.of_tools(tools)
        self._request_id = request_id
        self._tags = TagScanner()
        self._state = _State.CONTENT
        self._label = ""  # the name or key that is being read
        self._writer: ArgumentsWriter | None = None
        self._calls = 0
        self._content: list[str] = []
        self._deltas: list[ToolDelta] = []

    @property
    def in_call(self) -> bool:
        """Whether the next text belongs to a call."""
        return self._state is not _State.CONTENT

    @property
    def unfinished(self) -> int:
        """After `finish`: how many of the last characters of the last call's arguments are of a
        value that never ended."""
        return self._writer.unfinished if self._writer else 0

    def push(self, text: str) -> ToolPieces:
        """What `text` makes certain."""
        for piece in self._tags.push(text):
            if isinstance(piece, Tag):
                self._tag(piece)
            else:
                self._text(piece)
        return self._take()

    def finish(self) -> ToolPieces:
        """The end of the text, which closes an open call unless it cuts a value.

        A name that was cut is a call only if it is a tool's name. A value that was cut, if some of
        it has been sent, leaves the arguments unterminated; else it is dropped.
        """
        rest = self._tags.finish()
        if self._state is _State.CONTENT:
            self._text(rest)
        elif self._state is _State.NAME and self._label.strip() in self._tools:
            self._open_call()
        if self._writer:
            self._send(self._writer.cut())
        return self._take()

    def _tag(self, tag: Tag) -> None:
        match tag.kind:
            case "<tool_call>":
                self._close_call(_State.PREAMBLE)
            case "<function=":
                self._close_call(_State.NAME)
            case "</tool_call>" if self.in_call:
                self._close_call(_State.CONTENT)
            case "</function>" if self._state in _OPEN:
                self._close_call(_State.BETWEEN)
            case "<parameter=" if self._state in _OPEN:
                self._end_part(_State.KEY)
            case "</parameter>" if self._state in (_State.KEY, _State.VALUE):
                self._end_part(_State.ARGS)
            case _:
                self._text(tag.text)

    def _text(self, text: str) -> None:
        match self._state:
            case _State.CONTENT:
                self._content.append(text)
            case _State.NAME | _State.KEY:
                label, end, rest = text.partition(">")
                self._label += label
                if end:
                    self._end_label()
                    self._text(rest)
            case _State.VALUE if self._writer:
                self._send(self._writer.add(text))
            case _:
                pass  # between tags

    def _end_label(self) -> None:
        if self._state is _State.NAME:
            self._open_call()
            self._state = _State.ARGS
        else:
            if self._writer:
                self._writer.begin(self._label.strip())
            self._state = _State.VALUE

    def _end_part(self, state: _State) -> None:
        """The end of a value, or of a name that should have ended before."""
        if self._state is _State.NAME:
            self._open_call()
        if self._writer:
            self._send(self._writer.end())
        self._state, self._label = state, ""

    def _open_call(self) -> None:
        name = self._label.strip()
        if not name:
            return
        self._writer = ArgumentsWriter(self._tools.get(name, Parameters()))
        self._deltas.append(
            ToolDelta(
                index=self._calls,
                id=f"call_{self._request_id}_{self._calls}",
                name=name,
                arguments=self._writer.open(),
            )
        )
        self._calls += 1

    def _close_call(self, state: _State) -> None:
        if self._state is _State.NAME:
            self._open_call()
        if self._writer:
            self._send(self._writer.close())
        self._writer, self._state, self._label = None, state, ""

    def _send(self, arguments: str) -> None:
        if arguments:
            self._deltas.append(ToolDelta(index=self._calls - 1, arguments=arguments))

    def _take(self) -> ToolPieces:
        pieces = ToolPieces(content="".join(self._content), deltas=tuple(self._deltas))
        self._content.clear()
        self._deltas.clear()
        return pieces
