"""What clients of a gateway get from step5-nano: chats, tools, logprobs, constraints, seeds."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.gateway.stack import CONTEXT, Stack, stacked

HELLO = "What is fourstep?"
SAID = "fourstep runs Step-5 models fast: each step verifies four tokens at once."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with stacked(tmp_path_factory.mktemp("gateway")) as made:
        yield made


def streamed(stack: Stack, text: str, **options: Any) -> dict[str, Any]:
    """The deltas of a streamed answer, joined, and what the last chunks say."""
    found: dict[str, Any] = {"reasoning": "", "content": "", "arguments": "", "name": "", "end": ""}
    chunks = stack.chat(text, stream=True, stream_options={"include_usage": True}, **options)
    for chunk in chunks:
        if chunk.usage is not None:
            found["usage"] = chunk.usage
        for choice in chunk.choices:
            found["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            found["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                found["name"] += call.function.name or ""
                found["arguments"] += call.function.arguments or ""
            found["end"] += choice.finish_reason or ""
    return found


def test_a_chat_whole_and_streamed(stack: Stack) -> None:
    whole = stack.chat(HELLO)
    [choice] = whole.choices
    assert choice.message.content.strip() == SAID
    assert choice.message.reasoning_content.strip() == "I know this."
    assert choice.finish_reason == "stop"
    parts = streamed(stack, HELLO)
    assert parts["reasoning"] == choice.message.reasoning_content
    assert parts["content"] == choice.message.content
    assert parts["end"] == "stop"
    for usage in (whole.usage, parts["usage"]):
        assert (usage.prompt_tokens, usage.completion_tokens) == (15, 28)
        assert usage.completion_tokens_details.accepted_prediction_tokens > 15
        assert usage.completion_tokens_details.rejected_prediction_tokens >= 0


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tool_is_called(stack: Stack, choice: str) -> None:
    options: dict[str, Any] = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 100}
    [answer] = stack.chat("What is the weather in Paris?", **options).choices
    [call] = answer.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Paris"},
    )
    assert answer.finish_reason == "tool_calls"
    assert answer.message.reasoning_content
    parts = streamed(stack, "What is the weather in Paris?", **options)
    assert (parts["name"], json.loads(parts["arguments"])) == ("get_weather", {"city": "Paris"})
    assert not parts["content"].strip()
    assert parts["end"] == "tool_calls"


def test_logprobs(stack: Stack) -> None:
    [choice] = stack.chat("Sort: tiger apple moon", logprobs=True, top_logprobs=2).choices
    assert choice.message.content.split() == ["apple", "moon", "tiger"]
    told = choice.logprobs.content
    assert "".join(one.token for one in told).split() == ["apple", "moon", "tiger"]
    for one in told:
        assert one.logprob <= 0
        assert len(one.top_logprobs) == 2
        # Greedy: the token is the likeliest one.
        assert (one.top_logprobs[0].token, one.top_logprobs[0].logprob) == (one.token, one.logprob)


def test_several_answers_of_one_seed_and_the_same_again(stack: Stack) -> None:
    options: dict[str, Any] = {"temperature": 1.8, "seed": 11, "max_tokens": 24}

    def said(choice: Any) -> tuple[str | None, str | None]:
        return choice.message.reasoning_content, choice.message.content

    two = [said(choice) for choice in stack.chat("hello", n=2, **options).choices]
    assert two[0] != two[1]
    assert [said(choice) for choice in stack.chat("hello", **options).choices] == two[:1]
    assert [said(choice) for choice in stack.chat("hello", n=2, **options).choices] == two
    other = stack.chat("hello", **{**options, "seed": -11}).choices
    assert [said(choice) for choice in other] != two[:1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_holds_behind_the_thinking(stack: Stack, stream: bool) -> None:
    text = "Extract JSON: Anna is 31 years old and lives in Paris."
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    options: dict[str, Any] = {"response_format": form, "max_tokens": 100}
    if stream:
        parts = streamed(stack, text, **options)
        reasoning, content = parts["reasoning"], parts["content"]
    else:
        message = stack.chat(text, **options).choices[0].message
        reasoning, content = message.reasoning_content, message.content
    assert reasoning
    assert json.loads(content) == {"name": "Anna", "age": 31, "city": "Paris"}


def test_a_stop_string_ends_the_answer_and_is_not_in_it(stack: Stack) -> None:
    [choice] = stack.chat(HELLO, stop=["models"]).choices
    assert choice.message.content.strip() == SAID.partition(" models")[0]
    assert choice.finish_reason == "stop"
    assert streamed(stack, HELLO, stop=["models"])["content"] == choice.message.content


def test_the_length_is_what_is_asked_for_and_what_there_is(stack: Stack) -> None:
    whole = stack.chat("hello", max_tokens=3)
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 3)
    assert stack.chat("hello", max_tokens=100_000).choices[0].finish_reason == "stop"
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        stack.chat("apple " * 2 * CONTEXT)


def test_what_a_worker_refuses_is_the_callers_mistake(stack: Stack) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "none", "schema": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError, match="json_schema"):
        stack.chat("hello", response_format=form)


def test_workers_tell_their_load(stack: Stack) -> None:
    assert stack.healthy == 2
    assert [model.id for model in stack.client.models.list()] == ["step5-nano"]
