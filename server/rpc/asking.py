"""Messages of fourstep.v1 as what the runtime takes: prompts and parameters.

Knows presence and defaults. Does not know ranges: SamplingParams refuses what is outside, by the
names that the messages use too. Keeps true: a field that is not set is the runtime's default.
"""

from typing import Any

from fourstep.v1 import inference_pb2 as pb

from runtime.chat import Chat, chat_of, parse_json
from runtime.parsers.answer import ToolChoice
from runtime.request import Constraint, SamplingParams
from server.rpc.served import Asked, Served, seed_of
from server.rpc.status import UnsupportedError

_PLAIN = (
    *("temperature", "top_k", "top_p", "min_p", "n", "min_tokens", "include_stop_str"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos"),
    *("skip_special_tokens", "logprobs", "prompt_logprobs"),
)
_LISTS = ("bad_words", "stop", "stop_token_ids")
_TOOL_CHOICES: dict[int, ToolChoice] = {
    pb.TOOL_CHOICE_UNSPECIFIED: "auto",
    pb.TOOL_CHOICE_AUTO: "auto",
    pb.TOOL_CHOICE_NONE: "none",
}


def asked(prompt: pb.Prompt, served: Served) -> Asked:
    """Raises ValueError, UnsupportedError for images."""
    kind = prompt.WhichOneof("input")
    if kind == "text":
        return served.text(prompt.text)
    if kind == "token_ids":
        return served.tokens(tuple(prompt.token_ids.ids))
    if kind == "chat":
        return served.chat(chat(prompt.chat))
    raise ValueError("prompt: one of text, token_ids and chat is needed")


def chat(message: pb.Chat) -> Chat:
    """Raises ValueError naming the field."""
    if message.tool_choice not in _TOOL_CHOICES:  # enums of the protocol take any number
        raise ValueError(f"tool_choice: no choice has the number {message.tool_choice}")
    value: dict[str, Any] = {
        "messages": [_message(one, f"messages[{i}]") for i, one in enumerate(message.messages)],
        "tools": [
            parse_json(tool, f"tools_json[{i}]") for i, tool in enumerate(message.tools_json)
        ],
    }
    if message.HasField("reasoning_effort"):
        value["reasoning_effort"] = message.reasoning_effort
    return chat_of(value)


def tool_choice(message: pb.Chat) -> ToolChoice:
    return _TOOL_CHOICES[message.tool_choice]


def sampling(message: pb.SamplingParams, prompt: Asked, served: Served) -> SamplingParams:
    """Raises ValueError naming the field."""
    values: dict[str, Any] = {
        name: getattr(message, name) for name in _PLAIN if message.HasField(name)
    }
    values |= {name: tuple(getattr(message, name)) for name in _LISTS}
    if message.allowed_token_ids:
        values["allowed_token_ids"] = tuple(message.allowed_token_ids)
    room = served.room(prompt)
    values["max_tokens"] = message.max_tokens if message.HasField("max_tokens") else room
    if message.HasField("constraint"):
        values["constraint"] = constraint(message.constraint, prompt, served)
    values["seed"] = seed_of(message.seed if message.HasField("seed") else None)
    return SamplingParams(logit_bias=dict(message.logit_bias), **values)


def constraint(message: pb.Constraint, prompt: Asked, served: Served) -> Constraint:
    kind = message.WhichOneof("language")
    if kind is None:
        raise ValueError("constraint: no language is set")
    set_ = message.HasField("after_reasoning")
    after = message.after_reasoning if set_ else served.thinks(prompt)
    if kind == "choice":
        choices = tuple(message.choice.texts)
        return Constraint(kind="choice", choices=choices, after_reasoning=after)
    if kind == "json_object":
        if not message.json_object:
            raise ValueError("constraint.json_object = false: must be true, or not set")
        return Constraint(kind="json_object", after_reasoning=after)
    return Constraint(kind=kind, source=getattr(message, kind), after_reasoning=after)


def _message(message: pb.Message, where: str) -> dict[str, Any]:
    parts = []
    for i, part in enumerate(message.parts):
        kind = part.WhichOneof("content")
        if kind == "image":
            raise UnsupportedError("images are not answered yet")
        if kind is None:  # or of a kind that a later contract has
            raise ValueError(f"{where}.parts[{i}]: has no content that is known here")
        parts.append({"type": "text", "text": part.text})
    # Templates take a text as it is; several parts are theirs to join.
    content: Any = parts[0]["text"] if len(parts) == 1 else parts
    value: dict[str, Any] = {"role": message.role, "content": content}
    if message.HasField("reasoning"):
        value["reasoning_content"] = message.reasoning
    for name in ("tool_call_id", "name"):
        if message.HasField(name):
            value[name] = getattr(message, name)
    if message.tool_calls:
        value["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_json},
            }
            for call in message.tool_calls
        ]
    return value
