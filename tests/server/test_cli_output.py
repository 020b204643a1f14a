"""Colours, legend, closing line and what a terminal is kept from."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from runtime.answer import End, Output
from runtime.logprobs import TokenLogprobs
from runtime.numbers import Numbers, Summary
from runtime.parsers.answer import Answer, ToolCall
from runtime.request import Step
from server.cli_output import Done, JsonPrinter, TextPrinter, closing_line

GREEN, CYAN, MAGENTA, RESET = "\x1b[32m", "\x1b[36m", "\x1b[35m", "\x1b[0m"

SUMMARY = Summary(
    finish_reason="stop",
    prompt_tokens=5,
    completion_tokens=9,
    steps=3,
    tokens_per_step=8 / 3,
    drafted_at=(3, 2, 2),
    acceptance_by_position=(1.0, 0.5, 0.25),
)


def step(accepted: int, *pieces: str) -> Output:
    made = Step(
        token_ids=tuple(range(len(pieces))),
        drafted=(7, 8, 9),
        accepted=accepted,
        finish_reason=None,
        pieces=pieces,
    )
    return Output(request_id="a", index=0, step=made)


def done(summary: Summary = SUMMARY, *, matched: int | str | None = 1, index: int = 0) -> Done:
    numbers = Numbers(
        prompt_tokens=5, cached_tokens=4, queued_s=0.25, first_token_s=0.5, total_s=0.75
    )
    end = End(reason=summary.finish_reason, numbers=numbers, matched=matched)
    return Done(index=index, end=end, summary=summary)


def terminal(draft_tokens: int = 3) -> tuple[TextPrinter, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", soft_wrap=True)
    return TextPrinter(console, draft_tokens=draft_tokens), file


def test_each_token_has_the_colour_of_who_proposed_it() -> None:
    output, file = terminal()
    output.step(step(3, "one", "two", "three", "four"))
    assert file.getvalue() == (f"{GREEN}one{RESET}{CYAN}two{RESET}{MAGENTA}three{RESET}four")


def test_a_rejected_draft_leaves_the_sampled_token_plain() -> None:
    output, file = terminal()
    output.step(step(1, "kept", "sampled"))
    assert file.getvalue() == f"{GREEN}kept{RESET}sampled"


def test_a_token_without_text_does_not_shift_the_colours() -> None:
    output, file = terminal()
    output.step(step(2, "", "\u4f60", "x"))
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
    TextPrinter(Console(file=file), draft_tokens=draft_tokens).start("prompt")
    output, coloured = terminal(draft_tokens=0)
    output.start("prompt")
    assert file.getvalue() == "prompt"
    assert "MTP" not in coloured.getvalue()


def test_control_characters_do_not_reach_a_terminal() -> None:
    output, file = terminal()
    output.step(step(0, "\x1b]0;title\x07", "a\tb\nc\r\x9b"))
    assert file.getvalue() == "\ufffd]0;title\ufffda\tb\nc\ufffd\ufffd"


def test_text_for_a_file_is_not_altered() -> None:
    file = io.StringIO()
    text = "[bold]\t" + "long " * 100 + ":smile: \U0001f600"
    TextPrinter(Console(file=file), draft_tokens=3).step(step(0, text))
    assert file.getvalue() == text


def test_answers_after_the_first_are_named() -> None:
    file = io.StringIO()
    printer = TextPrinter(Console(file=file), draft_tokens=3)
    printer.begin(0, 3)
    assert file.getvalue() == ""
    printer.begin(1, 3)
    assert file.getvalue() == "\nanswer 2 of 3\n\n"


def test_closing_line() -> None:
    assert closing_line(done(), drafts=True) == (
        "9 tokens in 0.50 s | 18.0 tokens a second | 2.67 tokens a step"
        " | accepted by position 1.00 0.50 0.25 | the model ended its answer"
    )


@pytest.mark.parametrize(
    ("drafted_at", "told"),
    [
        ((), "drafts in 0 of 255 steps | the model"),
        ((1, 1, 1), "drafts in 1 of 255 steps | the model"),
        ((250, 200, 10), "drafts in 250 of 255 steps | accepted by position 0.50 0.25 | the model"),
        ((255, 255, 255), "1.06 tokens a step | accepted by position 0.50 0.25 0.00 | the model"),
    ],
)
def test_closing_line_of_steps_without_drafts(drafted_at: tuple[int, ...], told: str) -> None:
    """How many had some; and no rate of a position that was hardly tried."""
    summary = dataclasses.replace(
        SUMMARY,
        steps=255,
        tokens_per_step=1.06,
        drafted_at=drafted_at,
        acceptance_by_position=(0.5, 0.25, 0.0)[: len(drafted_at)],
    )
    line = closing_line(done(summary), drafts=True)
    assert f" | {told} ended its answer" in f" | {line.split(' | ', 2)[2]}"


def test_who_wants_no_drafts_is_told_of_none() -> None:
    summary = dataclasses.replace(SUMMARY, drafted_at=(), acceptance_by_position=())
    assert closing_line(done(summary), drafts=False) == (
        "9 tokens in 0.50 s | 18.0 tokens a second | 2.67 tokens a step"
        " | the model ended its answer"
    )


def test_closing_line_of_a_single_token() -> None:
    summary = Summary(
        finish_reason="length",
        prompt_tokens=5,
        completion_tokens=1,
        steps=0,
        tokens_per_step=0.0,
        drafted_at=(),
        acceptance_by_position=(),
    )
    assert closing_line(done(summary), drafts=True) == (
        "1 token in 0.50 s | 2.0 tokens a second | --max-tokens reached"
    )


def test_closing_line_of_a_stop_text() -> None:
    assert closing_line(done(matched="\n"), drafts=True).endswith(" | a --stop text came")


def line(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    return printed


def test_json_text_is_readable_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    JsonPrinter(many=False).step(step(1, "\u4f60", "\U0001f600\n"))
    printed = line(capsys)
    assert "\u4f60\U0001f600" in printed
    assert json.loads(printed) == {
        "token_ids": [0, 1],
        "text": "\u4f60\U0001f600\n",
        "drafted": [7, 8, 9],
        "accepted": 1,
    }


def test_json_of_several_answers_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    printer = JsonPrinter(many=True)
    printer.step(dataclasses.replace(step(0, "a"), index=2))
    assert json.loads(line(capsys))["index"] == 2
    printer.end(done(index=2))
    assert json.loads(line(capsys))["index"] == 2


def test_json_of_logprobs(capsys: pytest.CaptureFixture[str]) -> None:
    told = TokenLogprobs(token=0, logprob=-1.5, top=((7, -0.5), (0, -1.5)))
    JsonPrinter(many=False).step(dataclasses.replace(step(0, "a"), logprobs=(told,)))
    top = [{"token_id": 7, "logprob": -0.5}, {"token_id": 0, "logprob": -1.5}]
    assert json.loads(line(capsys))["logprobs"] == [{"token_id": 0, "logprob": -1.5, "top": top}]


def test_json_of_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    call = ToolCall(id="generate-0-0", name="f", arguments="{}")
    parsed = Answer(reasoning="hm", content=None, tool_calls=(call,), reasoning_tokens=3)
    JsonPrinter(many=False).end(dataclasses.replace(done(), parsed=parsed))
    assert json.loads(line(capsys)) == {
        "done": True,
        "finish_reason": "stop",
        "matched": 1,
        "prompt_tokens": 5,
        "cached_tokens": 4,
        "completion_tokens": 9,
        "steps": 3,
        "tokens_per_step": 8 / 3,
        "acceptance_by_position": [1.0, 0.5, 0.25],
        "prefill_seconds": 0.25,
        "decode_seconds": 0.25,
        "seconds": 0.5,
        "reasoning": "hm",
        "content": None,
        "tool_calls": [{"id": "generate-0-0", "name": "f", "arguments": "{}"}],
        "reasoning_tokens": 3,
    }
