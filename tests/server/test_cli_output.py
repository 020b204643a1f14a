"""Colours, legend, closing line and what a terminal is kept from."""

import io
import json

import pytest
from rich.console import Console

from runtime.request import Step, Summary
from server.cli_output import JsonOutput, TextOutput, closing_line

GREEN, CYAN, MAGENTA, RESET = "\x1b[32m", "\x1b[36m", "\x1b[35m", "\x1b[0m"

SUMMARY = Summary(
    finish_reason="stop",
    prompt_tokens=5,
    completion_tokens=9,
    steps=3,
    tokens_per_step=8 / 3,
    acceptance_by_position=(1.0, 0.5, 0.25),
)


def step(accepted: int, count: int) -> Step:
    return Step(
        token_ids=tuple(range(count)), drafted=(7, 8, 9), accepted=accepted, finish_reason=None
    )


def terminal(draft_tokens: int = 3) -> tuple[TextOutput, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", soft_wrap=True)
    return TextOutput(console, draft_tokens=draft_tokens), file


def test_each_token_has_the_colour_of_who_proposed_it() -> None:
    output, file = terminal()
    output.step(step(accepted=3, count=4), ["one", "two", "three", "four"])
    assert file.getvalue() == (f"{GREEN}one{RESET}{CYAN}two{RESET}{MAGENTA}three{RESET}four")


def test_a_rejected_draft_leaves_the_sampled_token_plain() -> None:
    output, file = terminal()
    output.step(step(accepted=1, count=2), ["kept", "sampled"])
    assert file.getvalue() == f"{GREEN}kept{RESET}sampled"


def test_a_token_without_text_does_not_shift_the_colours() -> None:
    output, file = terminal()
    output.step(step(accepted=2, count=3), ["", "\u4f60", "x"])
    assert file.getvalue() == f"{CYAN}\u4f60{RESET}x"


def test_the_legend_names_the_depths_in_use() -> None:
    output, file = terminal(draft_tokens=2)
    output.start("prompt")
    legend = file.getvalue().split("\n")[0]
    assert f"{GREEN}drafted by MTP layer 1{RESET}" in legend
    assert f"{CYAN}drafted by MTP layer 2{RESET}" in legend
    assert "layer 3" not in legend


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_no_legend_without_colours_or_drafts(draft_tokens: int) -> None:
    file = io.StringIO()
    TextOutput(Console(file=file), draft_tokens=draft_tokens).start("prompt")
    output, coloured = terminal(draft_tokens=0)
    output.start("prompt")
    assert file.getvalue() == "prompt"
    assert "MTP" not in coloured.getvalue()


def test_control_characters_do_not_reach_a_terminal() -> None:
    output, file = terminal()
    output.step(step(accepted=0, count=2), ["\x1b]0;title\x07", "a\tb\nc\r\x9b"])
    assert file.getvalue() == "\ufffd]0;title\ufffda\tb\nc\ufffd\ufffd"


def test_text_for_a_file_is_not_altered() -> None:
    file = io.StringIO()
    TextOutput(Console(file=file), draft_tokens=3).step(
        step(accepted=0, count=1), ["[bold]\t" + "long " * 100 + ":smile: \U0001f600"]
    )
    assert file.getvalue() == "[bold]\t" + "long " * 100 + ":smile: \U0001f600"


def test_closing_line() -> None:
    assert closing_line(SUMMARY, 0.5) == (
        "9 tokens in 0.50 s | 18.0 tokens a second | 2.67 tokens a step"
        " | accepted by position 1.00 0.50 0.25 | the model ended its answer"
    )


def test_closing_line_of_a_single_token() -> None:
    summary = Summary(
        finish_reason="length",
        prompt_tokens=5,
        completion_tokens=1,
        steps=0,
        tokens_per_step=0.0,
        acceptance_by_position=(),
    )
    assert closing_line(summary, 0.5) == (
        "1 token in 0.50 s | 2.0 tokens a second | --max-tokens reached"
    )


def test_json_text_is_readable_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    JsonOutput().step(step(accepted=1, count=2), ["\u4f60", "\U0001f600\n"])
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert "\u4f60\U0001f600" in line
    assert json.loads(line) == {
        "token_ids": [0, 1],
        "text": "\u4f60\U0001f600\n",
        "drafted": [7, 8, 9],
        "accepted": 1,
    }
