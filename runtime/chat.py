"""Chat messages to prompt text, through the checkpoint's own chat_template.jinja.

Knows the JSON of a chat (messages, tools, reasoning effort) and the template's environment; does
not know tokens or the model's answer. Keeps true: a template is untrusted code, so it runs in
jinja's immutable sandbox, and what is wrong with a chat or a template is a ChatError saying where.
Architecture section 7.2.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

Json = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool", "observation")


class ChatError(ValueError):
    """The chat or the template cannot be used; the message names the field or the cause."""


@dataclass(frozen=True, kw_only=True)
class Chat:
    """One conversation as a template takes it; `tools` are JSON function schemas."""

    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()
    reasoning_effort: str | None = None


def parse_chat(text: str) -> Chat:
    """Reads {"messages": [...], "tools": [...], "reasoning_effort": ...} or a bare message list.

    Raises ChatError naming the field. Tool-call arguments may be JSON text, as chat interfaces
    write them, or an object; a template always sees the object.
    """
    value = parse_json(text, "the chat")
    return chat_of({"messages": value} if isinstance(value, list) else value)


def chat_of(value: object) -> Chat:
    """The object form of parse_chat, as Python values. Raises ChatError."""
    fields = _object(value, "the chat")
    unknown = sorted(fields.keys() - {"messages", "tools", "reasoning_effort"})
    if unknown:
        raise ChatError(f"the chat has unknown fields: {', '.join(unknown)}")
    messages = _list(fields.get("messages"), "messages")
    if not messages:
        raise ChatError("messages: is empty")
    effort = fields.get("reasoning_effort")
    if effort is not None and not isinstance(effort, str):
        raise ChatError(f"reasoning_effort: expected text, got {effort!r}")
    return Chat(
        messages=tuple(_message(m, f"messages[{i}]") for i, m in enumerate(messages)),
        tools=tuple(
            _tool(t, f"tools[{i}]") for i, t in enumerate(_list(fields.get("tools", []), "tools"))
        ),
        reasoning_effort=effort,
    )


def parse_json(text: str, where: str) -> Any:
    """Raises ChatError saying where the text stands."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers and nesting that Python refuses
        raise ChatError(f"{where}: is not JSON: {error}") from error


def _object(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise ChatError(f"{where}: expected an object, got {type(value).__name__}")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ChatError(f"{where}: expected a list, got {type(value).__name__}")
    return value


def _message(value: object, where: str) -> Json:
    message = _object(value, where)
    if message.get("role") not in ROLES:
        got = json.dumps(message.get("role"))
        raise ChatError(f"{where}.role: expected one of {', '.join(ROLES)}, got {got}")
    _check_content(message.get("content"), f"{where}.content")
    calls = message.get("tool_calls")
    if calls is None:
        return message
    calls = _list(calls, f"{where}.tool_calls")
    return message | {
        "tool_calls": [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    }


def _check_content(content: object, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    for index, value in enumerate(_list(content, where)):
        part = _object(value, f"{where}[{index}]")
        if part.get("type") != "text":
            kind = json.dumps(part.get("type"))
            raise ChatError(f"{where}[{index}]: only text parts are supported, got type {kind}")
        if not isinstance(part.get("text"), str):
            raise ChatError(f"{where}[{index}].text: expected text")


def _call(value: object, where: str) -> Json:
    call = _object(value, where)
    function = _object(call.get("function", call), f"{where}.function")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = parse_json(arguments or "{}", f"{where}.function.arguments")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise ChatError(f"{where}.function.name: expected text")
    function = function | {"arguments": _object(arguments, f"{where}.function.arguments")}
    return call | {"function": function} if "function" in call else function


def _tool(value: object, where: str) -> Json:
    tool = _object(value, where)
    function = _object(tool.get("function", tool), f"{where}.function")
    if not isinstance(function.get("name"), str):
        raise ChatError(f"{where}.function.name: expected text")
    return tool


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` that chat templates are written for: plain JSON, where jinja's escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class ChatTemplate:
    """A compiled chat template and the special tokens that it may write."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are template variables such as bos_token. Raises ChatError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(
                source, globals={"raise_exception": _raise_exception}
            )
        except jinja2.TemplateSyntaxError as error:
            raise ChatError(f"chat template, line {error.lineno}: {error.message}") from error
        self._special_tokens = dict(special_tokens)

    @classmethod
    def open(cls, folder: Path, *, special_tokens: Mapping[str, str]) -> "ChatTemplate":
        """Reads folder/chat_template.jinja. Raises ChatError when there is none."""
        path = folder / "chat_template.jinja"
        if not path.is_file():
            raise ChatError(f"{path}: no such file, so this checkpoint takes plain prompts alone")
        return cls(path.read_text(encoding="utf-8"), special_tokens=special_tokens)

    def render(self, chat: Chat) -> str:
        """The prompt text, ending where the assistant's answer begins.

        Raises ChatError when the template refuses the chat, fails, or leaves the sandbox.
        """
        # What templates are written for: tools is always defined, the effort only when given.
        variables: Json = {
            "messages": list(chat.messages),
            "tools": list(chat.tools) or None,
            "add_generation_prompt": True,
            **self._special_tokens,
        }
        if chat.reasoning_effort is not None:
            variables["reasoning_effort"] = chat.reasoning_effort
        try:
            return self._template.render(variables)
        except Exception as error:
            # A template is a program of the checkpoint's: whatever it raises is its fault.
            raise ChatError(f"chat template: {error}") from error
