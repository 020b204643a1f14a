"""Parameter values from text to JSON, typed by the tool's JSON schema.

Knows one function's schema; does not know tags or streaming. The listed types are tried in a fixed
order and the first that fits wins; if none does, the text is taken as JSON, else as it is. Keeps
true: any schema and any text give valid JSON text, and nothing raises: schemas come from users and
values from a model. Architecture section 7.4.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

Json = dict[str, Any]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def json_text(value: object) -> str:
    """JSON as chat interfaces write it: not ASCII alone, unless it could not be encoded else."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can write
        return json.dumps(value)
    return text


class Parameters:
    """The parameters of one function, from the `parameters` of its JSON schema."""

    def __init__(self, schema: object = None) -> None:
        self._root = schema

    @classmethod
    def of_tools(cls, tools: Iterable[Mapping[str, Any]]) -> "dict[str, Parameters]":
        """By function name, from schemas bare or as {"type": "function", "function": ...}."""
        functions = [tool.get("function", tool) for tool in tools]
        return {function["name"]: cls(function.get("parameters")) for function in functions}

    def is_text(self, key: str) -> bool:
        """Whether the value can be nothing but its own text, whatever is still to come of it."""
        schema = self._member(self._root, key)
        return schema is None or self._types(schema) == {"string"}

    def to_json(self, key: str, text: str) -> str:
        """The JSON text of a parameter's whole value; one the schema does not know is text."""
        schema = self._member(self._root, key)
        if schema is None:
            return json_text(text)
        try:
            return json_text(self._typed(text, schema))
        except RecursionError:  # JSON nested deeper than Python follows
            return json_text(text)

    def _typed(self, text: str, schema: object) -> Any:
        types = self._types(schema)
        for name, read in _READERS.items():
            if name in types:
                try:
                    return self._nested(read(text), schema)
                except ValueError:
                    continue
        try:
            return self._nested(_load(text), schema)
        except ValueError:
            return text

    def _nested(self, value: Any, schema: object) -> Any:
        """A JSON value whose members, which JSON has typed already, follow the schema too."""
        if isinstance(value, dict):
            return {
                key: self._retyped(item, self._member(schema, key)) for key, item in value.items()
            }
        if isinstance(value, list):
            items = self._items(schema)
            return [self._retyped(item, items) for item in value]
        return value

    def _retyped(self, value: Any, schema: object) -> Any:
        if schema is None:
            return value
        types = self._types(schema)
        scalar = isinstance(value, str | int | float)
        if not scalar or not types or _type_of(value) in types:
            return self._nested(value, schema)
        return self._typed(value if isinstance(value, str) else json.dumps(value), schema)

    def _types(self, schema: object) -> set[str]:
        """The JSON types that a schema lists or implies, with those of its alternatives."""
        types: set[str] = set()
        for node in self._branches(schema):
            listed = node.get("type")
            types.update(name for name in _as_list(listed) if isinstance(name, str))
            types.update(_type_of(value) for value in _as_list(node.get("enum", [])))
            if "const" in node:
                types.add(_type_of(node["const"]))
        return types & _READERS.keys()

    def _member(self, schema: object, key: str) -> object:
        """The schema of one property, None where there is none."""
        for node in self._branches(schema):
            properties = node.get("properties")
            if isinstance(properties, dict) and properties.get(key) is not None:
                return properties[key]
        return None

    def _items(self, schema: object) -> object:
        return next((node["items"] for node in self._branches(schema) if "items" in node), None)

    def _branches(self, schema: object) -> list[Json]:
        """The schema, what it refers to, and all that its anyOf, oneOf and allOf hold."""
        found: list[Json] = []
        seen: set[int] = set()
        waiting = [schema]
        while waiting:
            node = waiting.pop(0)
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            found.append(node)
            if "$ref" in node:
                waiting.append(self._referred(node["$ref"]))
            for word in ("anyOf", "oneOf", "allOf"):
                if isinstance(node.get(word), list):
                    waiting.extend(node[word])
        return found

    def _referred(self, reference: object) -> object:
        """What "#/$defs/Name" points at inside these parameters, None for anything else."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        node: object = self._root
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            node = node.get(name) if isinstance(node, dict) else None
        return node


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    # bool before int: Python's booleans are integers.
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "object")


def _load(text: str) -> Any:
    """Raises ValueError, also for the numbers that Python reads and JSON does not have."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _integer(text: str) -> int:
    return int(text) if _INTEGER.fullmatch(text.strip()) else _refuse(text)


def _number(text: str) -> int | float:
    if _INTEGER.fullmatch(text.strip()):
        return int(text)
    return _finite(text) if _NUMBER.fullmatch(text.strip()) else _refuse(text)


def _boolean(text: str) -> bool:
    known = _BOOLEANS.get(text.strip().lower())
    return known if known is not None else _refuse(text)


def _null(text: str) -> None:
    return None if text.strip() == "null" else _refuse(text)


def _object(text: str) -> Json:
    value = _load(text)
    return value if isinstance(value, dict) else _refuse(text)


def _array(text: str) -> list[Any]:
    value = _load(text)
    return value if isinstance(value, list) else _refuse(text)


# The types of JSON schema in the order in which they are tried.
_READERS: dict[str, Callable[[str], Any]] = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _object,
    "array": _array,
    "string": str,
}
