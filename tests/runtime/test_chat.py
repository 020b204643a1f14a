"""Chat files and templates: what a template sees, what is refused, and what the sandbox forbids."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.chat import Chat, ChatError, ChatTemplate, parse_chat
from runtime.tokenizer import Tokenizer
from tests.runtime.tiny_tokenizer import BOS, VOCAB_SIZE, tiny_core

# A cut of the family's template: BOS, effort and tools in the system turn, ChatML turns.
FAMILY = """\
{{- bos_token }}
{%- if tools or reasoning_effort is defined %}
{{- '<|im_start|>system\\n' }}
{%- if reasoning_effort is defined %}{{- 'Reasoning: ' + reasoning_effort + '\\n\\n' }}{%- endif %}
{%- for tool in tools or [] %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<function=' + call.function.name + '>' }}
{%- for key, value in call.function.arguments | items %}{{- key }}={{ value }}{%- endfor %}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"""


def template(source: str = FAMILY) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={"bos_token": BOS})


def user(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def render(source: str, **fields: Any) -> str:
    return template(source).render(Chat(messages=(user(),), **fields))


def test_family_prompt() -> None:
    text = template().render(parse_chat(json.dumps([user("hello")])))
    assert text == f"{BOS}<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_a_rendered_prompt_has_one_bos() -> None:
    """Fault B11, "BOS missing", and its opposite: the template writes BOS, encoding adds none."""
    tokenizer = Tokenizer(tiny_core(), vocab_size=VOCAB_SIZE, bos_id=0)
    chat = parse_chat(json.dumps([user("hello")]))
    with_bos = tokenizer.encode(template().render(chat))
    without = tokenizer.encode(template(FAMILY.replace("{{- bos_token }}", "")).render(chat))
    assert with_bos == without
    assert with_bos.count(tokenizer.bos_id) == 1


def test_tools_and_effort_reach_the_template() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "a<b & 'c' \u00e9"}}
    chat = parse_chat(
        json.dumps({"messages": [user()], "tools": [tool], "reasoning_effort": "low"})
    )
    text = template().render(chat)
    assert "Reasoning: low\n\n" in text
    assert json.dumps(tool, ensure_ascii=False) + "\n" in text


def test_to_json_is_plain_json_in_the_given_order() -> None:
    value = {"z": "<b>&'\u4f60", "a": [1, None, True]}
    assert render("{{ tools[0] | tojson }}", tools=(value,)) == json.dumps(
        value, ensure_ascii=False
    )
    assert render("{{ tools[0] | tojson(indent=2) }}", tools=(value,)).startswith('{\n  "z"')


def test_absent_tools_are_none_and_absent_effort_is_undefined() -> None:
    assert render("{{ tools is none }} {{ reasoning_effort is defined }}") == "True False"


@pytest.mark.parametrize("arguments", ['{"x": 1}', {"x": 1}])
def test_call_arguments_reach_the_template_as_an_object(arguments: Any) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [user(), {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert "<function=f>x=1" in template().render(parse_chat(json.dumps(messages)))


def test_text_parts_are_accepted() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = parse_chat(json.dumps([user(parts)]))
    assert chat.messages[0]["content"] == parts


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "the chat: expected an object, got str"),
        ({}, "messages: expected a list, got NoneType"),
        ([], "messages: is empty"),
        ({"messages": [user()], "model": "m", "n": 1}, "unknown fields: model, n"),
        ([3], r"messages\[0\]: expected an object, got int"),
        ([{"content": "x"}], r"messages\[0\]\.role: expected one of .* got null"),
        ([{"role": "robot", "content": "x"}], r"messages\[0\]\.role: .* got \"robot\""),
        ([user(7)], r"messages\[0\]\.content: expected a list, got int"),
        ([user([{"type": "image"}])], r"messages\[0\]\.content\[0\]: only text .* \"image\""),
        ([user([{"type": "text"}])], r"messages\[0\]\.content\[0\]\.text"),
        ([user() | {"tool_calls": 1}], r"messages\[0\]\.tool_calls: expected a list"),
        (
            [user() | {"tool_calls": [{"function": {"arguments": "{"}}]}],
            r"tool_calls\[0\]\.function\.arguments: is not JSON",
        ),
        ({"messages": [user()], "tools": [{"function": {}}]}, r"tools\[0\]\.function\.name"),
        ({"messages": [user()], "reasoning_effort": 3}, "reasoning_effort: expected text"),
    ],
)
def test_a_wrong_chat_is_refused_by_field(value: Any, expected: str) -> None:
    with pytest.raises(ChatError, match=expected):
        parse_chat(json.dumps(value))


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ChatError, match="not JSON"):
        parse_chat("{messages: ")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("line one\n{% if %}", "chat template, line 2"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ missing.field }}", "missing"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "[Rr]ange too big"),
    ],
)
def test_template_faults_are_chat_errors(source: str, expected: str) -> None:
    with pytest.raises(ChatError, match=expected):
        render(source)


def test_open(tmp_path: Path) -> None:
    with pytest.raises(ChatError, match=r"chat_template\.jinja: no such file"):
        ChatTemplate.open(tmp_path, special_tokens={})
    (tmp_path / "chat_template.jinja").write_text(FAMILY)
    opened = ChatTemplate.open(tmp_path, special_tokens={"bos_token": BOS})
    chat = Chat(messages=(user(),))
    assert opened.render(chat) == template().render(chat)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 3000, "1" * 5000])
def test_json_that_python_refuses_is_refused(text: str) -> None:
    with pytest.raises(ChatError, match="the chat: is not JSON"):
        parse_chat(text)


def test_a_tool_call_has_a_name() -> None:
    call = {"function": {"arguments": {}}}
    chat = [user(), {"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(ChatError, match=r"tool_calls\[0\]\.function\.name: expected text"):
        parse_chat(json.dumps(chat))


@pytest.mark.parametrize(
    "source", ["{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "{{ cycler() }}"]
)
def test_whatever_a_template_raises_is_a_chat_error(source: str) -> None:
    with pytest.raises(ChatError, match="chat template"):
        template(source).render(Chat(messages=(user(),)))
