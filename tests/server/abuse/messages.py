"""Random messages of any type of the contract, and bytes that nearly are ones.

Knows descriptors and what is at the edge of each kind of field. Does not know meanings. Keeps true:
every field can be set and left out, and what is drawn is small enough to be run.
"""

from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

_MOST = 3  # entries of a list, and messages within messages
_WORDS = (
    *(
        "",
        "def read",
        "\x00",
        "\u263a\U0001f608",
        "</think>",
        "<|im_end|>",
        "{{ 7 * 7 }}",
        "[" * 3000,
    ),
    *('{"type": "object"}', '{"type": 7}', "null", "{", "(a|b)+", "(((", "a{9999}{9999}"),
    *("root ::= 'a' root", "start: start", "user", "assistant", "system", "tool", "high"),
)
_NUMBERS = (0, 1, 2, 3, 7, 20, 129, 2**31 - 1, 2**32 - 1)
_KINDS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32) | st.sampled_from((0.0, 0.5, 1.0)),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_STRING: st.sampled_from(_WORDS) | st.text(max_size=8),
    FieldDescriptor.CPPTYPE_UINT32: st.sampled_from(_NUMBERS) | st.integers(0, 400),
    FieldDescriptor.CPPTYPE_UINT64: st.sampled_from((*_NUMBERS, 2**63, 2**64 - 1)),
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 9),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(-1, 3) | st.just(2**31 - 1),
}


def messages(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Messages of this type with any of their fields."""
    return _of(kind.DESCRIPTOR, _MOST)


@cache
def _of(descriptor: Descriptor, depth: int) -> st.SearchStrategy[Message]:
    if depth < 0:
        return st.just(GetMessageClass(descriptor)())
    fields = st.lists(st.sampled_from(list(descriptor.fields) or [None]), max_size=6, unique=True)
    return fields.flatmap(lambda chosen: _with(descriptor, chosen, depth))


def _with(
    descriptor: Descriptor, chosen: list[FieldDescriptor | None], depth: int
) -> st.SearchStrategy[Message]:
    named = {field.name: _value(field, depth) for field in chosen if field is not None}
    return st.fixed_dictionaries(named).map(lambda values: GetMessageClass(descriptor)(**values))


def _value(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = (_value(inner.fields_by_name[name], depth) for name in ("key", "value"))
        return st.dictionaries(key, value, max_size=_MOST)
    one = _KINDS[field.cpp_type] if inner is None else _of(inner, depth - 1)
    if field.type == FieldDescriptor.TYPE_BYTES:
        one = st.binary(max_size=8)
    return st.lists(one, max_size=_MOST) if field.is_repeated else one


@st.composite
def spoiled(draw: st.DrawFn, whole: st.SearchStrategy[Message]) -> bytes:
    """The bytes of a message with a few of them replaced, cut out or put in."""
    data = bytearray(draw(whole).SerializeToString())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = draw(st.integers(start, min(len(data), start + 4)))
        data[start:stop] = draw(st.binary(max_size=4))
    return bytes(data)
