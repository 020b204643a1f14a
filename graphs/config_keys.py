"""One JSON object being read: aliases, supported values, and what nobody asked for.

Knows no key of the model. Keeps true: a key counts as known once it was read, checked or ignored by
name, also in sections; what is left over is what unread() reports.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphs.errors import ConfigError

MISSING: Any = object()
INT64 = 2**63 - 1
FLOAT_MAX = sys.float_info.max


class Keys:
    """A JSON object whose keys are ticked off as they are read."""

    def __init__(self, values: Mapping[str, Any], where: str):
        self._values = values
        self._where = where
        self._known: set[str] = set()
        self._sections: dict[str, Keys] = {}

    def take(self, *names: str, default: Any = MISSING) -> Any:
        """The value under any of `names`; aliases that are both present must agree."""
        found = [(name, self._values[name]) for name in names if name in self._values]
        self._known.update(names)
        for name, value in found[1:]:
            if value != found[0][1]:
                first = f"{found[0][0]} = {found[0][1]!r}"
                raise ConfigError(f"{self._where}: {first} contradicts {name} = {value!r}")
        if found:
            return found[0][1]
        if default is MISSING:
            raise ConfigError(f"{self._where}: missing key {' or '.join(names)}")
        return default

    def section(self, name: str) -> "Keys | None":
        """The object under `name`, None when absent or null."""
        value = self.take(name, default=None)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self._where}: {name} = {value!r} is not an object")
        if name not in self._sections:
            self._sections[name] = Keys(value, name)
        return self._sections[name]

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean; the default when absent or null."""
        value = self.take(name, default=None)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self._where}: {name} = {value!r} is not true or false")
        return value

    def only(self, name: str, supported: Any) -> None:
        """`name`, when present, must have the one supported value."""
        self.one_of(name, (supported,))

    def one_of(self, name: str, supported: tuple[Any, ...]) -> None:
        value = self.take(name, default=None)
        flag = isinstance(value, bool)  # 1 == True, but not in a config
        same = any(v == value and isinstance(v, bool) == flag for v in supported)
        if value is not None and not same:
            allowed = " or ".join(repr(v) for v in supported)
            raise ConfigError(f"{self._where}: {name} = {value!r} is not supported, only {allowed}")

    def ignore(self, *names: str) -> None:
        """Tick keys off that change nothing here."""
        self._known.update(names)

    def ignore_rest(self) -> None:
        """Tick off every key: the whole object changes nothing here."""
        self._known.update(self._values)

    def unread(self) -> list[str]:
        """Dotted names of every key that was neither read nor ignored."""
        own = [name for name in self._values if name not in self._known]
        return own + [f"{n}.{key}" for n, keys in self._sections.items() for key in keys.unread()]


def integer(value: Any, name: str, *, least: int = 0, most: int = INT64) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} = {value!r} is not an integer of at least {least}")
    if value > most:
        raise ConfigError(f"{name} = {value!r} is over {most}")
    return value


def integers(value: Any, name: str) -> list[int]:
    """A list of integers; a single integer is a list of one."""
    return [integer(v, name) for v in (value if isinstance(value, list) else [value])]


def number(value: Any, name: str) -> float:
    """A finite number; JSON as Python reads it also has NaN, Infinity and integers of any size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} = {value!r} is not a number")
    if not -FLOAT_MAX <= value <= FLOAT_MAX:
        raise ConfigError(f"{name} = {value!r} is not a finite number")
    return float(value)


def positive(value: Any, name: str) -> float:
    if number(value, name) <= 0:
        raise ConfigError(f"{name} = {value!r} is not positive")
    return float(value)


def choices(value: Any, name: str, allowed: tuple[str, ...]) -> list[str]:
    """A list of which every entry is one of `allowed`."""
    if not isinstance(value, list):
        raise ConfigError(f"{name} = {value!r} is not a list")
    for index, entry in enumerate(value):
        if entry not in allowed:
            known = ", ".join(repr(choice) for choice in allowed)
            raise ConfigError(f"{name}[{index}] = {entry!r} is not one of {known}")
    return value


def strings(value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ConfigError(f"{name} = {value!r} is not a list of strings")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object; ConfigError names the file when it is absent or not an object."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also not UTF-8, or digits beyond Python's limit
        raise ConfigError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds a {type(value).__name__}, not an object")
    return value
