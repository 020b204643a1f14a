"""ServeConfig from one TOML file and from flags, which go before the file.

Knows the types of fields, and which flag stands for which key. Does not know what a section means:
sections name their own problems. Keeps true: every problem is told, all at once, by the key or the
flag that it came from; no key is ignored; paths of a file are relative to its folder.
"""

import dataclasses
import re
import tomllib
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from server.config import EXPOSED, ServeConfig
from server.errors import ProblemsError, named

T = TypeVar("T")
Flag = tuple[str, str, object]  # its name, the key that it stands for, its value or None
_MISSING = object()
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
}


class ConfigError(ProblemsError):
    """All that is wrong with a configuration."""


def load(file: Path | None = None, flags: Sequence[Flag] = ()) -> ServeConfig:
    """Raises ConfigError."""
    table = {} if file is None else _parsed(file)
    reader = _Reader(Path() if file is None else file.parent)
    own = "listeners" in table
    reader.flags = {key: flag for flag, key, _ in flags}
    for flag, key, value in flags:
        if value is None:
            continue
        if own and key.startswith("listeners"):
            reader.problems.append(f"{flag}: {file} has listeners, so say it there")
        else:
            reader.names[key] = flag
            _put(table, key, value)
    config = reader.section(ServeConfig, table, "")
    if config is None or reader.problems:
        raise ConfigError(list(dict.fromkeys(reader.problems)))
    return config


def _parsed(file: Path) -> dict[str, Any]:
    with named("--config"):
        data = file.read_bytes()
    try:
        return tomllib.loads(data.decode("utf-8"))
    except ValueError as error:  # no TOML, or no UTF-8
        raise ConfigError([f"{file}: {error}"]) from error


def _put(table: dict[str, Any], key: str, value: object) -> None:
    """Set a key such as `listeners[0].tls.cert`, making what is on the way. Where the file has
    something else than a table there, the reader refuses that."""
    *way, last = re.findall(r"\w+", key)
    place: Any = table
    for step, then in zip(way, (*way[1:], last), strict=True):
        if step.isdecimal():
            place.extend({} for _ in range(len(place), int(step) + 1))
            place = place[int(step)]
        else:
            place = place.setdefault(step, [] if then.isdecimal() else {})
        if type(place) not in (dict, list):
            return
    place[last] = value


class _Reader:
    """Makes dataclasses of tables, and gathers what is wrong; `folder` is where paths begin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self.names: dict[str, str] = {}  # of the keys that flags have set
        self.flags: dict[str, str] = {}  # of all that could

    def section(self, kind: type[T], table: object, key: str) -> T | None:
        """None where it cannot be made; then there are problems."""
        if not isinstance(table, dict):
            self._wrong(key, "must be a table")
            return None
        fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        for name in table.keys() - fields.keys():
            known = ", ".join(fields)
            self._wrong(_join(key, name), f"there is no such key; the keys here are {known}")
        types_ = typing.get_type_hints(kind)
        values: dict[str, Any] = {}
        whole = True
        for name, field in fields.items():
            if name in table:
                value = self._value(types_[name], table[name], _join(key, name))
                whole &= value is not _MISSING and self._in_range(field, value, _join(key, name))
                values[name] = value
            elif field.default is dataclasses.MISSING:
                self._needed(_join(key, name))
                whole = False
        return self._made(kind, values, key) if whole else None

    def _made(self, kind: type[T], values: dict[str, Any], key: str) -> T:
        made: Any = kind(**values)
        problems = made.problems() if hasattr(made, "problems") else ()
        for name, what in problems:
            self._wrong(_join(key, name), what)
        return made

    def _value(self, kind: Any, value: object, key: str) -> Any:
        """_MISSING where it is wrong."""
        origin, parts = typing.get_origin(kind), typing.get_args(kind)
        if origin is types.UnionType:
            return self._value(parts[0], value, key)
        if origin is Literal:
            if value in parts:
                return value
            return self._wrong(key, f"{value!r} must be one of {', '.join(parts)}")
        if origin is tuple:
            return self._many(parts[0], value, key)
        if dataclasses.is_dataclass(kind):
            made = self.section(typing.cast(type, kind), value, key)
            return _MISSING if made is None else made
        return self._plain(kind, value, key)

    def _many(self, kind: Any, value: object, key: str) -> Any:
        if not isinstance(value, list | tuple):
            return self._wrong(key, "must be a list")
        found = [self._value(kind, one, f"{key}[{i}]") for i, one in enumerate(value)]
        return _MISSING if _MISSING in found else tuple(found)

    def _plain(self, kind: type, value: object, key: str) -> Any:
        if kind is Path and isinstance(value, str):
            return self.folder / value
        if kind is float and type(value) is int:
            return float(value)
        if isinstance(value, Path) if kind is Path else type(value) is kind:
            return value
        return self._wrong(key, f"{value!r} must be {_WORDS[kind]}")

    def _in_range(self, field: Any, value: object, key: str) -> bool:
        least, most = field.metadata.get("least"), field.metadata.get("most")
        if least is None or not isinstance(value, int | float):
            return True
        if least <= value <= (float("inf") if most is None else most):
            return True
        self._wrong(
            key, f"{value} must be " + (f">= {least}" if most is None else f"in [{least}, {most}]")
        )
        return False

    def _needed(self, key: str) -> None:
        """By its flag, where what it is needed for came from flags."""
        section = _section(key)
        if any(_section(other) == section for other in self.names):
            key = self.flags.get(key, key)
        self._wrong(key, "is needed")

    def _wrong(self, key: str, what: str) -> Any:
        if key in self.names:  # a flag's user has flags in mind
            what = what.replace(EXPOSED, self.flags.get(f"{_section(key)}.exposed", EXPOSED))
        self.problems.append(f"{self.names.get(key, key)}: {what}")
        return _MISSING


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key and name else key or name


def _section(key: str) -> str:
    return key.rpartition(".")[0]
