"""The arguments of one tool call as JSON text, written while the values come.

Knows keys and pieces of values; does not know tags. Keeps true: the pieces returned, joined, are at
any time a prefix of the final JSON. A value that is its own text goes out as it comes, one newline
behind, since the last is not part of it; any other goes out once it is whole.
"""

from runtime.parsers.arguments import Parameters, json_text


class ArgumentsWriter:
    """Starts with `open`, ends with `close` or, where the answer breaks off, with `cut`.

    A key that was there before keeps its first value: what was sent cannot be taken back.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._keys: set[str] = set()
        self._value: _Value | None = None

    @property
    def unfinished(self) -> int:
        """How many of the last characters returned belong to a value that has not ended."""
        return self._value.written if self._value else 0

    def open(self) -> str:
        """The beginning of all arguments."""
        return "{"

    def begin(self, key: str) -> None:
        """A value follows."""
        assert self._value is None, "the value before has not been ended"
        if key and key not in self._keys:
            opening = f"{', ' if self._keys else ''}{json_text(key)}: "
            self._value = _Value(self._parameters, key, opening)
            self._keys.add(key)

    def add(self, text: str) -> str:
        """More of the value."""
        return self._value.add(text) if self._value else ""

    def end(self) -> str:
        """The value is whole."""
        value, self._value = self._value, None
        return value.end() if value else ""

    def close(self) -> str:
        """The call is whole, and with it a value that has not been ended."""
        return self.end() + "}"

    def cut(self) -> str:
        """The answer breaks off here. A value of which a part was sent stays as it is."""
        return "" if self.unfinished else "}"


class _Value:
    def __init__(self, parameters: Parameters, key: str, opening: str) -> None:
        self._parameters, self._key, self._opening = parameters, key, opening
        self._streams = parameters.is_text(key)
        self._started = False
        self._newline = ""  # held back: it may be the last one
        self._parts: list[str] = []
        self.written = 0

    def add(self, text: str) -> str:
        if not text:
            return ""
        if not self._started:
            self._started = True
            text = text.removeprefix("\n")
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        text = text.removesuffix("\n")
        if self._streams:
            return self._write(text)
        self._parts.append(text)
        return ""

    def end(self) -> str:
        if not self._streams:
            return self._opening + self._parameters.to_json(self._key, "".join(self._parts))
        return '"' if self.written else f'{self._opening}""'

    def _write(self, text: str) -> str:
        if not text:
            return ""
        piece = json_text(text)[1:-1]
        if not self.written:
            piece = f'{self._opening}"{piece}'
        self.written += len(piece)
        return piece
