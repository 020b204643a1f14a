"""The tools of the chat tasks: schemas, questions that call for them, results and replies.

Knows the wording only. Arguments are text, as on the wire; the schema says which are integers.
"""

import json
import random
from typing import Any

from models.recipe.words import CITIES, NAMES, WORDS

Message = dict[str, Any]
Calls = tuple[tuple[str, dict[str, str]], ...]


def _schema(name: str, description: str, **parameters: str) -> Message:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
            },
        },
    }


TOOLS: dict[str, Message] = {
    "get_weather": _schema("get_weather", "Weather in a city.", city="string"),
    "get_time": _schema("get_time", "Time in a city.", city="string"),
    "set_timer": _schema("set_timer", "Start a timer.", minutes="integer"),
    "send_mail": _schema("send_mail", "Send a mail.", to="string", text="string"),
    "buy": _schema("buy", "Buy things.", item="string", count="integer"),
    "search": _schema("search", "Search the web.", query="string"),
}


def _question(rng: random.Random, name: str) -> tuple[str, dict[str, str]]:
    """A question that calls for tool `name`, and the arguments it names."""
    city, person, count = rng.choice(CITIES), rng.choice(NAMES), rng.randint(2, 60)
    words = " ".join(rng.sample(WORDS, rng.randint(1, 3)))
    forms: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "get_weather": (
            (f"What is the weather in {city}?", f"Weather in {city}, please",
             f"How is the weather in {city}?"),
            {"city": city},
        ),
        "get_time": (
            (f"What time is it in {city}?", f"Time in {city}?", f"Tell me the time in {city}"),
            {"city": city},
        ),
        "set_timer": (
            (f"Set a timer for {count} minutes", f"Start a timer of {count} minutes",
             f"Timer, {count} minutes, please"),
            {"minutes": str(count)},
        ),
        "send_mail": (
            (f"Send a mail to {person}: {words}", f"Mail {person}: {words}"),
            {"to": person, "text": words},
        ),
        "buy": (
            (f"Buy {count} of {words}", f"Please buy {count} of {words}"),
            {"item": words, "count": str(count)},
        ),
        "search": (
            (f"Search for {words}", f"Search the web for {words}", f"Look up {words}"),
            {"query": words},
        ),
    }  # fmt: skip
    phrasings, arguments = forms[name]
    return rng.choice(phrasings), arguments


def _result(rng: random.Random, name: str, args: dict[str, str]) -> tuple[str, str]:
    """What tool `name` returns, as JSON text, and the reply that reports it."""
    if name == "get_weather":
        degrees, sky = rng.randint(1, 39), rng.choice(("sun", "rain", "snow", "wind", "fog"))
        reply = f"In {args['city']} it is {degrees} degrees with {sky}."
        return json.dumps({"degrees": degrees, "sky": sky}), reply
    if name == "get_time":
        clock = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
        return json.dumps({"time": clock}), f"In {args['city']} it is {clock}."
    if name == "search":
        hits = rng.randint(2, 99)
        return json.dumps({"hits": hits}), f"I found {hits} pages about {args['query']}."
    return json.dumps({"ok": True}), "Done."


def make_tool_chat(
    rng: random.Random,
) -> tuple[tuple[Message, ...], tuple[Message, ...], str, str, Calls]:
    """Messages, tools, reasoning, content and calls of one chat; a third reports a result."""
    offered = rng.sample(list(TOOLS), rng.choice((1, 1, 2, 2, 3)))
    name = rng.choice(offered)
    tools = tuple(TOOLS[offer] for offer in offered)
    question, args = _question(rng, name)
    messages: tuple[Message, ...] = ({"role": "user", "content": question},)
    calling = f"I call {name}."
    calls: Calls = ((name, args),)
    if rng.random() < 0.67:
        return messages, tools, calling, "", calls
    result, reply = _result(rng, name, args)
    call = {"function": {"name": name, "arguments": args}}
    asked = {"role": "assistant", "reasoning_content": calling, "content": "", "tool_calls": [call]}
    messages = (*messages, asked, {"role": "tool", "content": result})
    return messages, tools, "I report the result.", reply, ()
