"""The end of an answer parsed at once, by splitting: what the state machine must equal.

Written from the grammar alone, without states, hold-back or tokens. Values are typed by the same
Parameters, which have tests of their own.
"""

import re

from runtime.parsers.arguments import Parameters, json_text
from tests.runtime.parsers.recorded import TOOLS

PARAMETERS = Parameters.of_tools(TOOLS)
FUNCTION = r"<function[ \t]{0,8}="
PARAMETER = r"<parameter[ \t]{0,8}="
TAGS = ("<tool_call>", "</tool_call>", "<function", "</function", "<parameter", "</parameter")

Calls = list[tuple[str, str]]


def parse(text: str) -> tuple[str, Calls]:
    """(content, [(name, arguments as JSON text)])."""
    content, calls = "", []
    while begin := re.search(rf"<tool_call>|{FUNCTION}", text):
        content += text[: begin.start()]
        region, closed, text = text[begin.start() :].partition("</tool_call>")
        calls += _calls(region, bool(closed))
    return content + text, calls


def _calls(region: str, closed: bool) -> Calls:
    found: Calls = []
    frames = region.split("<tool_call>")
    for frame_number, frame in enumerate(frames):
        bodies = re.split(FUNCTION, frame)[1:]
        for number, body in enumerate(bodies):
            last = frame_number == len(frames) - 1 and number == len(bodies) - 1
            body, *rest = re.split(r"</function[ \t]{0,8}>", body, maxsplit=1)
            found += _call(body, whole=closed or bool(rest) or not last)
    return found


def _call(body: str, *, whole: bool) -> Calls:
    head, *values = re.split(PARAMETER, body)
    name, end, _ = head.partition(">")
    if not (end or values or whole):
        name = _without_partial_tag(name)
        if name.strip() not in PARAMETERS:
            return []
    name = name.strip()
    if not name:
        return []
    parameters = PARAMETERS.get(name, Parameters())
    members: dict[str, str] = {}
    for number, chunk in enumerate(values):
        chunk, *rest = re.split(r"</parameter[ \t]{0,8}>", chunk, maxsplit=1)
        key, end, value = chunk.partition(">")
        key = key.strip()
        ended = whole or rest or number < len(values) - 1
        if key and end and ended and key not in members:
            value = value.removeprefix("\n").removesuffix("\n")
            members[key] = parameters.to_json(key, value)
    text = ", ".join(f"{json_text(key)}: {value}" for key, value in members.items())
    return [(name, f"{{{text}}}")]


def _without_partial_tag(text: str) -> str:
    cut = text.rfind("<")
    tail = text[cut:].rstrip(" \t") if cut >= 0 else ""
    return text[:cut] if tail and any(tag.startswith(tail) for tag in TAGS) else text
