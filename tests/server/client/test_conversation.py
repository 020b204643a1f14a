"""What was said, and what of an answer can be said again."""

import json
from pathlib import Path

from fourstep.v1 import inference_pb2 as pb
from google.protobuf.json_format import MessageToDict

from runtime.chat import parse_chat
from server.client.conversation import Conversation, Reply, chat_message
from server.rpc import asking

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def delta(**fields: object) -> pb.GenerateResponse:
    return pb.GenerateResponse(tool_calls=[pb.ToolCallDelta(**fields)])  # pyright: ignore[reportArgumentType]


def said(conversation: Conversation) -> list[tuple[str, str]]:
    messages = conversation.prompt().chat.messages
    return [(message.role, "".join(part.text for part in message.parts)) for message in messages]


def answered(content: str) -> Reply:
    reply = Reply()
    reply.add(pb.GenerateResponse(content=content, end=pb.End()))
    return reply


def test_a_chat_is_the_same_to_the_worker_as_to_generate() -> None:
    text = json.dumps(
        {
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": [{"type": "text", "text": "Weather"}]},
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning_content": "I call.",
                    "tool_calls": [
                        {
                            "id": "a",
                            "type": "function",
                            "function": {"name": "f", "arguments": {"city": "Paris", "days": 2}},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "a", "name": "f", "content": "rain"},
            ],
            "tools": json.loads((EXAMPLES / "tool.json").read_text())["tools"],
            "reasoning_effort": "low",
        }
    )
    chat = parse_chat(text)
    message = chat_message(chat)
    back = asking.chat(message)
    assert back.tools == chat.tools
    assert back.reasoning_effort == "low"
    flat = [{**one, "content": "Weather"} if i == 1 else one for i, one in enumerate(chat.messages)]
    assert list(back.messages) == flat


def test_turns_alternate() -> None:
    conversation = Conversation(pb.Chat())
    assert not conversation.waits
    conversation.say("Hello")
    assert conversation.waits
    conversation.take(answered("Hi"))
    assert not conversation.waits
    conversation.say("More")
    assert said(conversation) == [("user", "Hello"), ("assistant", "Hi"), ("user", "More")]


def test_what_was_not_answered_is_taken_back() -> None:
    start = pb.Chat(messages=[pb.Message(role="user", parts=[pb.Part(text="from the file")])])
    conversation = Conversation(start)
    conversation.take_back()
    assert said(conversation) == [("user", "from the file")]
    conversation.take(answered("yes"))
    conversation.say("lost")
    conversation.take(Reply())
    assert said(conversation) == [("user", "from the file"), ("assistant", "yes")]


def test_results_of_calls_are_asked_for_until_they_are_told() -> None:
    reply, conversation = Reply(), Conversation(pb.Chat())
    reply.add(delta(index=0, id="a", name="f", arguments='{"x"'))
    reply.add(delta(index=0, arguments=": 1}"))
    reply.add(delta(index=1, id="b", name="g", arguments="{}"))
    conversation.say("Call")
    conversation.take(reply)
    assert [call.name for call in conversation.calls] == ["f", "g"]
    for call in conversation.calls:
        conversation.tell(call, f"of {call.name}")
    assert conversation.waits
    last = MessageToDict(conversation.prompt().chat.messages[-1], preserving_proto_field_name=True)
    assert last == {
        "role": "tool",
        "name": "g",
        "tool_call_id": "b",
        "parts": [{"text": "of g"}],
    }


def test_of_an_answer_that_was_stopped_whole_calls_remain() -> None:
    reply = Reply()
    reply.add(pb.GenerateResponse(reasoning="I call."))
    reply.add(delta(index=0, id="a", name="f", arguments="{}"))
    reply.add(delta(index=1, id="b", name="g", arguments='{"x": '))
    message = reply.message()
    assert message is not None
    assert message.reasoning == "I call."
    assert [(call.id, call.name, call.arguments_json) for call in message.tool_calls] == [
        ("a", "f", "{}")
    ]
