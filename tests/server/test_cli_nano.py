"""`fourstep generate` as a newcomer types it: no checkpoint named, an example chat."""

import json
from pathlib import Path

from typer.testing import CliRunner

from server.cli_commands import app

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
EAGER = ("--compiler", "eager")  # no test here is about engines


def answer(name: str, *options: str) -> str:
    """The text of the answer to an example chat."""
    arguments = ["generate", "--chat", str(EXAMPLES / name), "--json", *EAGER, *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    *steps, done = [json.loads(line) for line in result.stdout.splitlines()]
    assert done["finish_reason"] == "stop"
    return "".join(step["text"] for step in steps)


def test_the_first_question_of_a_newcomer() -> None:
    thought, _, content = answer("hello.json").partition("</think>")
    assert thought
    assert "fourstep" in content


def test_the_answer_does_not_depend_on_speculation() -> None:
    assert answer("sort.json") == answer("sort.json", "--spec-tokens", "0")


def test_a_tool_is_called() -> None:
    content = answer("tool.json").partition("</think>")[2]
    assert "<function=get_weather>\n<parameter=city>\nParis\n</parameter>" in content


def test_answers_to_chats_are_parsed() -> None:
    arguments = ["generate", "--chat", str(EXAMPLES / "tool.json"), "--json", *EAGER]
    result = CliRunner().invoke(app, arguments)
    done = json.loads(result.stdout.splitlines()[-1])
    assert done["reasoning"]
    assert not (done["content"] or "").strip()
    [call] = done["tool_calls"]
    assert call["name"] == "get_weather"
    assert json.loads(call["arguments"]) == {"city": "Paris"}
