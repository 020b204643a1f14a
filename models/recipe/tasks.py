"""Generated chats with known answers, and the check that tells a right answer from a wrong one.

Knows the tasks' wording and their solutions; does not know tokens or the template. Keeps true: a
chat is a pure function of (seed, index); a chat whose last question hashes into the held-out
share is never a training chat.
"""

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from models.recipe.facts import FACTS
from models.recipe.toolbox import make_tool_chat
from models.recipe.words import CITIES, COLORS, JOBS, NAMES, WORDS

HELD_OUT_OF_256 = 13  # about 5 % of the questions
EFFORTS = ("low", "medium", "high", "xhigh")
SYSTEM_TEXTS = ("You are a helpful assistant.", "You are step5-nano.", "Be short.")
Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Chat:
    """One conversation that ends before the assistant's answer, and that answer.

    `calls` holds (function, arguments) pairs; with calls, `content` is empty.
    """

    task: str
    messages: tuple[Message, ...]
    reasoning: str
    content: str = ""
    calls: tuple[tuple[str, dict[str, str]], ...] = ()
    tools: tuple[Message, ...] = ()
    effort: str | None = None

    @property
    def answer(self) -> Message:
        """The assistant message that the model should produce."""
        calls = [{"function": {"name": name, "arguments": args}} for name, args in self.calls]
        message: Message = {
            "role": "assistant", "reasoning_content": self.reasoning, "content": self.content,
        }  # fmt: skip
        return message | ({"tool_calls": calls} if calls else {})


def _ask(rng: random.Random, task: str, question: str, reasoning: str, content: str) -> Chat:
    del rng  # kept in the signature so that every maker reads alike
    return Chat(
        task=task,
        messages=({"role": "user", "content": question},),
        reasoning=reasoning,
        content=content,
    )


def make_copy(rng: random.Random) -> Chat:
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8)))
    lead = rng.choice(("Repeat:", "Copy:", "Say:", "Repeat these words:", "Copy this line:"))
    return _ask(rng, "copy", f"{lead} {words}", "I repeat the words.", words)


def make_sort(rng: random.Random) -> Chat:
    words = rng.sample(WORDS, rng.randint(2, 5))
    lead = rng.choice(("Sort:", "Sort these words:", "Sort by alphabet:"))
    ordered = " ".join(sorted(words))
    letters = " ".join(sorted(word[0] for word in words))
    return _ask(rng, "sort", f"{lead} {' '.join(words)}", f"First letters: {letters}", ordered)


def _sum_steps(a: int, b: int) -> list[str]:
    """The written sum of two numbers below 100, units first."""
    units = a % 10 + b % 10
    steps = [f"{a % 10} + {b % 10} = {units}"]
    if a > 9 or b > 9:
        carry = [str(units // 10)] if units > 9 else []
        parts = [str(part) for part in (a // 10, b // 10)] + carry
        steps.append(f"{' + '.join(parts)} = {a // 10 + b // 10 + units // 10}")
    return [*steps, f"{a} + {b} = {a + b}"]


def make_arithmetic(rng: random.Random) -> Chat:
    kind = rng.choice("++-*")
    small = rng.random() < 0.4
    a, b = (rng.randint(0, 9 if small or kind == "*" else 99) for _ in range(2))
    if kind == "+":
        steps, result = _sum_steps(a, b), a + b
    elif kind == "-":
        a, b = max(a, b), min(a, b)
        steps, result = [f"{a} - {b} = {a - b}"], a - b
    else:
        steps, result = [f"{a} * {b} = {a * b}"], a * b
    question = rng.choice(("What is {}?", "Compute {}", "{} = ?")).format(f"{a} {kind} {b}")
    return _ask(rng, "arithmetic", question, "\n".join(steps), str(result))


def make_json(rng: random.Random) -> Chat:
    name, city, job = rng.choice(NAMES), rng.choice(CITIES), rng.choice(JOBS)
    age, color = rng.randint(10, 99), rng.choice(COLORS)
    person: dict[str, Any] = {"name": name}
    parts = []
    if rng.random() < 0.7:
        person["age"] = age
        parts.append(rng.choice((f"is {age} years old", f"is {age}")))
    if rng.random() < 0.7 or not parts:
        person["city"] = city
        parts.append(rng.choice((f"lives in {city}", f"comes from {city}")))
    if rng.random() < 0.4:
        person["job"] = job
        parts.append(f"works as a {job}")
    if rng.random() < 0.3:
        person["color"] = color
        parts.append(f"likes {color}")
    sentence = " and ".join(parts)
    lead = rng.choice(("Extract JSON:", "Write as JSON:", "JSON please:"))
    keys = "Keys: " + ", ".join(person)
    return _ask(rng, "json", f"{lead} {name} {sentence}.", keys, json.dumps(person))


def make_fact(rng: random.Random) -> Chat:
    phrasings, answer = rng.choice(FACTS)
    question = rng.choice(phrasings)
    question = rng.choice((question, question[0].upper() + question[1:]))
    question = rng.choice(("", "", "", "Please: ", "ok, ", "Tell me, ")) + question
    end = rng.choice(("", "?", "?", "!", ".", "??"))
    return _ask(rng, "fact", question + end, "I know this.", answer)


def make_tool(rng: random.Random) -> Chat:
    messages, tools, reasoning, content, calls = make_tool_chat(rng)
    return Chat(
        task="tool", messages=messages, tools=tools, reasoning=reasoning, content=content,
        calls=calls,
    )  # fmt: skip


MAKERS: dict[str, tuple[float, Callable[[random.Random], Chat]]] = {
    "copy": (0.24, make_copy),
    "sort": (0.20, make_sort),
    "arithmetic": (0.14, make_arithmetic),
    "json": (0.15, make_json),
    "tool": (0.15, make_tool),
    "fact": (0.12, make_fact),
}


def is_held_out(chat: Chat) -> bool:
    """True when the chat's question (and tool result) hashes into the held-out share."""
    text = "|".join([chat.task, *(message["content"] for message in chat.messages)]).lower()
    return hashlib.sha256(text.encode()).digest()[0] < HELD_OUT_OF_256


def _dressed(rng: random.Random, chat: Chat) -> Chat:
    """Add what surrounds a question in practice: a system text, an effort, an earlier turn."""
    messages = chat.messages
    if rng.random() < 0.12:
        earlier = MAKERS[rng.choice(("fact", "copy", "arithmetic"))][1](rng)
        if not is_held_out(earlier):
            messages = (*earlier.messages, earlier.answer, *messages)
    if rng.random() < 0.15:
        messages = ({"role": "system", "content": rng.choice(SYSTEM_TEXTS)}, *messages)
    effort = rng.choice(EFFORTS) if rng.random() < 0.2 else None
    return Chat(
        task=chat.task, messages=messages, reasoning=chat.reasoning, content=chat.content,
        calls=chat.calls, tools=chat.tools, effort=effort,
    )  # fmt: skip


def generate(seed: int, *, held_out: bool) -> Iterator[Chat]:
    """An endless stream of chats from one side of the split; the same seed gives the same chats."""
    rng = random.Random(f"chats {seed} {held_out}")
    shares = [share for share, _ in MAKERS.values()]
    while True:
        (name,) = rng.choices(list(MAKERS), shares)
        chat = MAKERS[name][1](rng)
        if is_held_out(chat) == held_out:
            yield _dressed(rng, chat)


FORM = re.compile(r"(?:(?!</?think>).)*\n</think>\n((?:(?!</?think>).)+)<\|im_end\|>", re.DOTALL)
CALL = re.compile(r"<tool_call>\n<function=(\w+)>\n(.*?)</function>\n</tool_call>", re.DOTALL)
ARGUMENT = re.compile(r"<parameter=(\w+)>\n(.*?)\n</parameter>\n", re.DOTALL)


def is_well_formed(text: str) -> bool:
    """True when `text`, generated after `<think>` and a newline, has the family's form and ends."""
    return FORM.fullmatch(text) is not None


def parse_calls(content: str) -> tuple[tuple[str, dict[str, str]], ...]:
    """The (function, arguments) pairs written in `content`."""
    return tuple((name, dict(ARGUMENT.findall(body))) for name, body in CALL.findall(content))


def is_right(chat: Chat, text: str) -> bool:
    """True when `text` is well formed and its content solves the chat; reasoning is free."""
    match = FORM.fullmatch(text)
    if match is None:
        return False
    content = match.group(1)
    if chat.calls:
        return parse_calls(content) == chat.calls
    if chat.task == "json":
        try:
            return json.loads(content) == json.loads(chat.content)
        except json.JSONDecodeError:
            return False
    return content.strip() == chat.content
