"""The generated chats: reproducible, split cleanly, and judged by checks that can say no.

Knows the tasks of models.recipe; needs no model.
"""

import itertools
from dataclasses import replace

import pytest

from models.recipe.tasks import MAKERS, Chat, generate, is_held_out, is_right, is_well_formed


def chats(count: int, *, held_out: bool = False) -> list[Chat]:
    return list(itertools.islice(generate(5, held_out=held_out), count))


def written(chat: Chat) -> str:
    """The answer as the model writes it, from after the generation prompt."""
    calls = "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in args.items())
        + "</function>\n</tool_call>"
        for name, args in chat.calls
    )
    return f"{chat.reasoning}\n</think>\n{chat.content}{calls}<|im_end|>"


def one_of(task: str) -> Chat:
    return next(chat for chat in chats(400) if chat.task == task)


def test_the_same_seed_gives_the_same_chats() -> None:
    assert chats(200) == chats(200)
    assert chats(200) != list(itertools.islice(generate(6, held_out=False), 200))


def question(chat: Chat) -> Chat:
    """The chat without system text and earlier turns: what the split goes by."""
    last = max(i for i, message in enumerate(chat.messages) if message["role"] == "user")
    return replace(chat, messages=chat.messages[last:])


def test_no_training_chat_is_held_out() -> None:
    assert not any(is_held_out(question(chat)) for chat in chats(500))
    assert all(is_held_out(question(chat)) for chat in chats(100, held_out=True))


def test_every_task_occurs_and_its_own_answer_is_right() -> None:
    seen = chats(400)
    assert {chat.task for chat in seen} == set(MAKERS)
    assert all(is_well_formed(written(chat)) and is_right(chat, written(chat)) for chat in seen)


@pytest.mark.parametrize("task", [name for name in MAKERS if name != "tool"])
def test_another_answer_is_wrong(task: str) -> None:
    chat = one_of(task)
    assert not is_right(chat, written(replace(chat, content=chat.content + " x")))
    assert not is_right(chat, written(replace(chat, content='{"name": 1}')))


def test_another_argument_or_function_is_wrong() -> None:
    chat = next(chat for chat in chats(400) if chat.calls)
    [(name, arguments)] = chat.calls
    for call in ((name, arguments | {"extra": "1"}), (name + "x", arguments), (name, {})):
        assert not is_right(chat, written(replace(chat, calls=(call,))))
    assert not is_right(chat, f"{chat.reasoning}\n</think>\n{name}<|im_end|>")


@pytest.mark.parametrize(
    "text",
    [
        "no end of thinking<|im_end|>",
        "thought\n</think>\n<|im_end|>",
        "thought\n</think>\nno end",
        "thought\n</think>\none\n</think>\ntwo<|im_end|>",
        "thought\n</think>\n<think>again<|im_end|>",
    ],
)
def test_malformed_answers_are_seen(text: str) -> None:
    assert not is_well_formed(text)
    assert not is_right(one_of("copy"), text)
