"""Answers as token streams: what was written, and what it says.

The texts are encoded with the shipped tokenizer, so markers are single tokens and characters
outside ASCII are several. Each answer continues a prompt that ends inside `<think>`.
"""

from dataclasses import dataclass
from typing import Any

from runtime.parsers.answer import ToolChoice

PROMPT = "<|im_start|>assistant\n<think>\n"


def function(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = (
    function("weather", city={"type": "string"}, days={"type": "integer"}),
    function("now"),
    function(
        "plan",
        title={"type": "string"},
        urgent={"type": "boolean"},
        weight={"type": "number"},
        note={"type": ["string", "null"]},
        route={"type": "object", "properties": {"stops": {"items": {"type": "integer"}}}},
        tags={"type": "array", "items": {"type": "string"}},
    ),
)


def call(name: str, *parameters: tuple[str, str]) -> str:
    """A call in the form of the chat template."""
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


@dataclass(frozen=True)
class Recorded:
    """`calls` are (name, arguments as JSON text); `streamed` the last arguments as streamed, where
    they differ."""

    name: str
    text: str
    reasoning: str | None = None
    content: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    streamed: str | None = None
    has_tools: bool = True
    tool_choice: ToolChoice = "auto"


PARIS = call("weather", ("city", "Paris"), ("days", "3"))
PARIS_CALL = ("weather", '{"city": "Paris", "days": 3}')
MIXED = "\u4e1c\u4eac \U0001f600\U0001f1e9\U0001f1ea e\u0301"
CODE = 'if a < b:\n\n\tprint("<b>\\n</b>")\n</div> </para'

RECORDED = [
    Recorded(
        "content alone",
        "Hm.\n</think>\nHello, \u4f60\u597d!<|im_end|>",
        "Hm.\n",
        "\nHello, \u4f60\u597d!",
    ),
    Recorded("no end of thinking", f"Hm {MIXED}", f"Hm {MIXED}"),
    Recorded("nothing", "<|im_end|>"),
    Recorded("repeated <think>", "<think>a</think>b", "a", "b"),
    Recorded("one call", f"Go.\n</think>\n{PARIS}<|im_end|>", "Go.\n", "\n", (PARIS_CALL,)),
    Recorded("no space around", f"Go.</think>{PARIS}", "Go.", None, (PARIS_CALL,)),
    Recorded(
        "two calls and content",
        f"a</think>Wait.\n{PARIS}\n{call('now')}\nDone <b>.",
        *("a", "Wait.\n\n\nDone <b>.", (PARIS_CALL, ("now", "{}"))),
    ),
    Recorded(
        "three calls in one frame",
        "</think><tool_call><function=now></function><function=now></function>\n<function=weather>"
        "<parameter=city>Oslo</parameter></function></tool_call>",
        calls=(("now", "{}"), ("now", "{}"), ("weather", '{"city": "Oslo"}')),
    ),
    Recorded(
        "every type",
        "</think>"
        + call(
            "plan",
            *(("title", MIXED), ("urgent", "True"), ("weight", "2.50"), ("note", "null")),
            *(("route", '{"stops": ["1", 2], "via": null}'), ("tags", f'["{MIXED}", 1]')),
        ),
        calls=(
            (
                "plan",
                f'{{"title": "{MIXED}", "urgent": true, "weight": 2.5, "note": null, '
                f'"route": {{"stops": [1, 2], "via": null}}, "tags": ["{MIXED}", "1"]}}',
            ),
        ),
    ),
    Recorded(
        "newlines and < in values",
        "</think>" + call("plan", ("title", f"\n{CODE}\n"), ("note", CODE)),
        calls=(
            (
                "plan",
                '{"title": "\\nif a < b:\\n\\n\\tprint(\\"<b>\\\\n</b>\\")\\n</div> </para\\n", '
                '"note": "if a < b:\\n\\n\\tprint(\\"<b>\\\\n</b>\\")\\n</div> </para"}',
            ),
        ),
    ),
    Recorded(
        "unknown function and parameters",
        "</think>" + call("fly", ("to", "5")) + call("now", ("zone", "1")),
        calls=(("fly", '{"to": "5"}'), ("now", '{"zone": "1"}')),
    ),
    Recorded("call before </think>", f"Go.\n{PARIS}\n</think>\n", "Go.\n", "\n\n", (PARIS_CALL,)),
    Recorded("</think> behind a call", f"a{PARIS}b{PARIS}</think>c", "a", "bc", (PARIS_CALL,) * 2),
    Recorded("</think> twice", "a</think>\n</think>\nb</think>", "a", "\n\nb</think>"),
    Recorded(
        "</think> in a value",
        "a</think>" + call("weather", ("city", "</think>")),
        *("a", None, (("weather", '{"city": "</think>"}'),)),
    ),
    Recorded("empty frames", "a</think><tool_call></tool_call>b<tool_call>\n", "a", "b"),
    Recorded(
        "bare function",
        "</think>So:<function=weather>\n<parameter=days>\n2\n</parameter>\n</function>",
        content="So:",
        calls=(("weather", '{"days": 2}'),),
    ),
    Recorded(
        "closing tags missing",
        "</think><tool_call>\n<function=weather>\n<parameter=city>\nRome\n<parameter=days>\n1\n"
        "<tool_call><function=now</tool_call>x<function=now><function=weather\n<parameter=city>a"
        "</tool_call>y",
        content="xy",
        calls=(
            ("weather", '{"city": "Rome", "days": 1}'),
            ("now", "{}"),
            ("now", "{}"),
            ("weather", '{"city": "a"}'),
        ),
    ),
    Recorded(
        "blanks in tags, odd names",
        "</think><function = weather >< parameter=x><parameter\t=  city >a</parameter ><parameter=>"
        "b</parameter><parameter=city>c</parameter></function ><function= ></function>",
        calls=(("weather", '{"city": "a"}'),),
    ),
    Recorded(
        "tags that are none",
        "</think><tool_ca </function> <functions> <",
        content="<tool_ca </function> <functions> <",
    ),
    Recorded("cut in a name", "</think><tool_call>\n<function=wea"),
    Recorded("cut behind a name", "</think><function=weather", calls=(("weather", "{}"),)),
    Recorded(
        "cut in a string",
        "</think><function=weather><parameter=days>1</parameter><parameter=city>\nPa\n</para",
        calls=(("weather", '{"days": 1}'),),
        streamed='{"days": 1, "city": "Pa',
    ),
    Recorded(
        "cut in a number",
        "</think><function=weather><parameter=city>a</parameter><parameter=days>12",
        calls=(("weather", '{"city": "a"}'),),
    ),
    Recorded(
        "cut before a value", "</think><function=weather><parameter=ci", calls=(("weather", "{}"),)
    ),
    Recorded("without tools", f"a{PARIS}</think>{PARIS}", f"a{PARIS}", PARIS, has_tools=False),
    Recorded("calls not wanted", f"a</think>b{PARIS}c", "a", "bc", tool_choice="none"),
    Recorded(
        "calls required", f"a</think>{PARIS}", "a", None, (PARIS_CALL,), tool_choice="required"
    ),
]
