"""What was said so far, as messages of fourstep.v1, and an answer put together from its stream.

Knows the messages of both directions. Does not know calls or screens. Keeps true: what goes into
the conversation is what can be sent again: a call whose arguments were cut off is left out.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from fourstep.v1 import inference_pb2 as pb

from runtime.chat import Chat

ASKING = ("user", "tool", "observation")  # whose message waits for an answer


@dataclass(kw_only=True)
class Reply:
    """One answer as it comes; `end` is there once it is whole."""

    reasoning: str = ""
    content: str = ""
    end: pb.End | None = None
    _calls: dict[int, pb.ToolCall] = field(default_factory=dict)

    def add(self, message: pb.GenerateResponse) -> None:
        self.reasoning += message.reasoning
        self.content += message.content
        for delta in message.tool_calls:
            call = self._calls.setdefault(delta.index, pb.ToolCall(arguments_json=""))
            call.arguments_json += delta.arguments
            if delta.HasField("name"):
                call.id, call.name = delta.id, delta.name
        if message.HasField("end"):
            self.end = message.end

    @property
    def calls(self) -> list[pb.ToolCall]:
        """Those that are whole."""
        return [call for _, call in sorted(self._calls.items()) if _is_json(call.arguments_json)]

    def message(self) -> pb.Message | None:
        """As the conversation keeps it; None where nothing came."""
        if not (self.reasoning or self.content or self.calls):
            return None
        made = pb.Message(role="assistant", tool_calls=self.calls)
        made.parts.add(text=self.content)
        if self.reasoning:
            made.reasoning = self.reasoning
        return made


class Conversation:
    """Messages, and tools that may be called."""

    def __init__(self, chat: pb.Chat) -> None:
        self._chat = chat
        self._kept = len(chat.messages)  # of a start and of what was answered since

    @property
    def waits(self) -> bool:
        """Whether it is the assistant's turn."""
        messages = self._chat.messages
        return bool(messages) and messages[-1].role in ASKING

    @property
    def calls(self) -> list[pb.ToolCall]:
        """Those of the last answer, whose results are missing."""
        messages = self._chat.messages
        return list(messages[-1].tool_calls) if messages else []

    def prompt(self) -> pb.Prompt:
        return pb.Prompt(chat=self._chat)

    def say(self, text: str) -> None:
        self._chat.messages.add(role="user").parts.add(text=text)

    def tell(self, call: pb.ToolCall, result: str) -> None:
        """What a call of the last answer returned."""
        message = self._chat.messages.add(role="tool", tool_call_id=call.id, name=call.name)
        message.parts.add(text=result)

    def take(self, reply: Reply) -> None:
        """The answer to what waits; where nothing came of it, what waited is taken back."""
        message = reply.message()
        if message is None:
            self.take_back()
        else:
            self._chat.messages.append(message)
            self._kept = len(self._chat.messages)

    def take_back(self) -> None:
        """What waits was not answered: as if it had not been said."""
        del self._chat.messages[self._kept :]


def chat_message(chat: Chat) -> pb.Chat:
    """A chat as runtime.chat reads it from JSON."""
    made = pb.Chat(tools_json=[json.dumps(tool) for tool in chat.tools])
    if chat.reasoning_effort is not None:
        made.reasoning_effort = chat.reasoning_effort
    made.messages.extend(map(_message, chat.messages))
    return made


def _message(value: dict[str, Any]) -> pb.Message:
    content = value.get("content") or ""
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    made = pb.Message(role=value["role"], parts=[pb.Part(text=text) for text in texts])
    if value.get("reasoning_content"):
        made.reasoning = value["reasoning_content"]
    for name in ("tool_call_id", "name"):
        if value.get(name):
            setattr(made, name, value[name])
    for call in value.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = json.dumps(function["arguments"])
        made.tool_calls.add(id=call.get("id", ""), name=function["name"], arguments_json=arguments)
    return made


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
