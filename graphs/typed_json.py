"""Dataclasses from parsed JSON, every value of the type its field declares.

Knows str, int, float, tuples, mappings and dataclasses of those. Does not know what values mean: a
dataclass checks that itself. Keeps true: an unknown or missing field is an error, and a bool is no
number.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

_NAMES = {str: "a string", int: "a whole number", float: "a number"}


def read_typed(kind: Any, found: Any, where: str) -> Any:
    """`found` as a `kind`. Raises ValueError saying what is wrong at `where`."""
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, found, where)
    if get_origin(kind) is tuple:
        if not isinstance(found, list):
            raise ValueError(f"{where} is no list")
        return tuple(read_typed(get_args(kind)[0], value, where) for value in found)
    if get_origin(kind) is Mapping:
        _, values = get_args(kind)
        return {k: read_typed(values, v, f"{where}.{k}") for k, v in _object(found, where).items()}
    fits = isinstance(found, int if kind is int else (int, float) if kind is float else kind)
    if not fits or isinstance(found, bool) or (kind is float and not _finite(found)):
        raise ValueError(f"{where} is not {_NAMES[kind]}")
    return found


def _finite(found: float) -> bool:
    """Of an integer too, which may be larger than every float."""
    return abs(found) <= sys.float_info.max  # nan is not


def _dataclass(kind: Any, found: Any, where: str) -> Any:
    hints = get_type_hints(kind)
    for name in sorted(set(hints) ^ set(_object(found, where))):
        raise ValueError(
            f"{where}: the field {name} is {'unknown' if name in found else 'missing'}"
        )
    return kind(**{name: read_typed(hints[name], found[name], name) for name in hints})


def _object(found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{where} is no object")
    return found
