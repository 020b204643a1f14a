"""Values typed by schema: the order of types, unions, references, nesting, and what never fails."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.parsers.arguments import Parameters

ANY = ["null", "integer", "number", "boolean", "object", "array", "string"]
SCHEMAS: dict[str, Any] = {
    "point": {"type": "object", "properties": {"x": {"type": "number"}, "s": {"type": "string"}}},
    "level": {"enum": ["low", "1"]},
    "loop": {"$ref": "#/$defs/loop"},
    "tree": {
        "type": "object",
        "properties": {
            "value": {"type": "integer"},
            "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
        },
    },
}


def typed(schema: object, text: str) -> Any:
    """A value's Python form, which tells 1 from True and from 1.0 by `exactly`."""
    root = {"properties": {"key": schema}, "$defs": SCHEMAS}
    return json.loads(Parameters(root).to_json("key", text), parse_constant=pytest.fail)


def exactly(value: Any) -> str:
    return json.dumps(value)


@pytest.mark.parametrize(
    ("types", "text", "value"),
    [
        (["integer", "null"], "null", None),
        (["string", "null"], "null", None),
        (["string", "null"], "None", "None"),
        ("string", "null", "null"),
        ("string", "12", "12"),
        ("string", " a\n", " a\n"),
        ("integer", "12", 12),
        ("integer", " -007 ", -7),
        ("integer", "1_000", "1_000"),
        ("integer", "2.0", 2.0),
        ("integer", "many", "many"),
        ("integer", "9" * 5000, "9" * 5000),
        ("number", "12", 12),
        ("number", "+.5", 0.5),
        ("number", "1e3", 1000.0),
        ("number", "1e999", "1e999"),
        ("number", "NaN", "NaN"),
        ("number", "-Infinity", "-Infinity"),
        ("number", "\u0663", "\u0663"),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("boolean", "1", True),
        ("boolean", "0", False),
        ("boolean", "yes", "yes"),
        (["boolean", "integer"], "1", 1),
        (["boolean", "string"], "1", True),
        (["boolean", "number"], "1", 1),
        ("object", '{"a": [1]}', {"a": [1]}),
        ("object", "[1]", [1]),
        ("object", "{a: 1}", "{a: 1}"),
        ("array", "[1, [2]]", [1, [2]]),
        ("array", "[NaN]", "[NaN]"),
        ("array", "[1e999]", "[1e999]"),
        ("array", '["\\ud800"]', ["\ud800"]),
        ("array", "[" * 100_000, "[" * 100_000),
        (["object", "string"], "plain", "plain"),
        (ANY, "null", None),
        (ANY, "1", 1),
        (ANY, "1.0", 1.0),
        (ANY, "true", True),
        (ANY, "{}", {}),
        (ANY, "[]", []),
        (ANY, "?", "?"),
        ("integers", "5", 5),
        (7, "x", "x"),
    ],
)
def test_types_in_order(types: object, text: str, value: Any) -> None:
    assert exactly(typed({"type": types}, text)) == exactly(value)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"enum": [1, None]}, "null", None),
        ({"const": 1.5}, "1.5", 1.5),
        ({"const": "1"}, "1", "1"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "3", 3),
        ({"oneOf": [{"type": "null"}, {"allOf": [{"type": "boolean"}]}]}, "true", True),
        ({"allOf": [{"type": "string"}]}, "3", "3"),
        ({"$ref": "#/$defs/level"}, "1", "1"),
        ({"$ref": "#/$defs/loop"}, "1", 1),
        ({"$ref": "#/$defs/none/deep"}, "[1]", [1]),
        ({"$ref": 5}, "a", "a"),
        ({}, "[1]", [1]),
        ({}, "1x", "1x"),
        (True, "1", 1),
        ({"anyOf": "x", "enum": 3, "properties": 1, "items": None}, "[1]", [1]),
    ],
)
def test_alternatives_and_references(schema: object, text: str, value: Any) -> None:
    assert exactly(typed(schema, text)) == exactly(value)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (
            {"$ref": "#/$defs/point"},
            '{"x": "1.5", "s": 3, "t": "4"}',
            {"x": 1.5, "s": "3", "t": "4"},
        ),
        ({"$ref": "#/$defs/point"}, '{"x": true, "s": true}', {"x": True, "s": "true"}),
        ({"$ref": "#/$defs/point"}, '{"x": null, "s": [1]}', {"x": None, "s": [1]}),
        ({"type": "array", "items": {"type": "integer"}}, '["1", 2, "x"]', [1, 2, "x"]),
        ({"type": "array", "items": {"type": "integer"}}, '["[2]"]', [[2]]),
        ({"type": "array", "items": {"type": ["integer", "string"]}}, '["2", 2]', ["2", 2]),
        (
            {"$ref": "#/$defs/tree"},
            '{"value": "1", "below": [{"value": "2", "below": []}]}',
            {"value": 1, "below": [{"value": 2, "below": []}]},
        ),
        (
            {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
            '{"x": "2"}',
            {"x": 2},
        ),
    ],
)
def test_members_follow_the_schema(schema: object, text: str, value: Any) -> None:
    assert exactly(typed(schema, text)) == exactly(value)


@pytest.mark.parametrize(
    ("schema", "streams"),
    [
        ({"type": "string"}, True),
        ({"type": ["string"]}, True),
        ({"enum": ["a", "b"]}, True),
        (None, True),
        ({"type": ["string", "null"]}, False),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, False),
        ({"type": "integer"}, False),
        ({}, False),
    ],
)
def test_only_what_must_be_text_is_text_before_its_end(schema: object, streams: bool) -> None:
    assert Parameters({"properties": {"key": schema}}).is_text("key") == streams


@pytest.mark.parametrize("root", [None, {}, {"properties": []}, [], "x", {"properties": {"a": {}}}])
def test_a_parameter_without_schema_is_text(root: object) -> None:
    assert Parameters(root).is_text("key")
    assert Parameters(root).to_json("key", "1") == '"1"'


def test_functions_bare_and_wrapped() -> None:
    function = {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}
    tools = [function, {"type": "function", "function": {**function, "name": "g"}}, {"name": "h"}]
    parameters = Parameters.of_tools(tools)
    assert [parameters[name].to_json("a", "1") for name in "fgh"] == ["1", "1", '"1"']


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
words = st.sampled_from([*ANY, "type", "anyOf", "items", "properties", "enum", "$ref", "#/a"])
schemas = st.recursive(
    words | json_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=10,
)


@given(schemas, st.text(max_size=12) | json_values.map(json.dumps))
@settings(deadline=None, max_examples=300)
def test_any_schema_and_text_give_json(schema: object, text: str) -> None:
    root = {"properties": {"key": schema}, "a": schema}
    json.loads(Parameters(root).to_json("key", text), parse_constant=pytest.fail)
