"""What an answer looks like, and which of the two streams it goes to."""

import io

import pytest
from fourstep.v1 import inference_pb2 as pb
from rich.console import Console

from server.cli_ink import Ink
from server.client.screen import Screen, closing_line

GREEN, CYAN, MAGENTA, YELLOW, DIM, RESET = (f"\x1b[{code}m" for code in (32, 36, 35, 33, 2, 0))


class Both:
    """A screen and what it wrote, as one text and by stream."""

    def __init__(self, *, terminal: bool) -> None:
        self.out, self.aside = io.StringIO(), io.StringIO()
        colours = "standard" if terminal else None
        streams = [
            Ink(Console(file=file, force_terminal=terminal, color_system=colours, soft_wrap=True))
            for file in (self.out, self.aside)
        ]
        self.screen = Screen(*streams)

    def shows(self, *messages: pb.GenerateResponse, parsed: bool = True) -> tuple[str, str]:
        self.screen.begin()
        for message in messages:
            self.screen.show(message, parsed=parsed)
        self.screen.end("over")
        return self.out.getvalue(), self.aside.getvalue()


def token(text: str, accepted: int = 0) -> pb.GenerateResponse:
    return pb.GenerateResponse(text=text, content=text, accepted=accepted)


def test_each_token_has_the_colour_of_who_proposed_it() -> None:
    tokens = (token("a", 1), token("b", 1), token("c", 1), token("d"), token("e", 1), token("f"))
    out, _ = Both(terminal=True).shows(*tokens, parsed=False)
    assert out == (f"{GREEN}a{RESET}{CYAN}b{RESET}{MAGENTA}c{RESET}d{GREEN}e{RESET}f\n")


def test_a_token_without_text_does_not_shift_the_colours() -> None:
    out, _ = Both(terminal=True).shows(token("", 1), token("b", 1), token("c"))
    assert out == f"{CYAN}b{RESET}c\n"


def test_a_pipe_gets_the_answer_alone() -> None:
    out, aside = Both(terminal=False).shows(
        pb.GenerateResponse(reasoning="I know.\n"), token("\nIt", 1), token(" is.")
    )
    assert out == "It is.\n"
    assert aside == "I know.\nover\n"


@pytest.mark.parametrize("thought", ["I know.", "I know.\n"])
def test_on_a_terminal_a_blank_line_parts_reasoning_and_answer(thought: str) -> None:
    _, aside = Both(terminal=True).shows(
        pb.GenerateResponse(reasoning=thought), token("\nIt"), token("\nis.")
    )
    plain = aside.replace(DIM, "").replace(RESET, "")
    assert plain == "I know.\n\n\nover\n"


def test_calls_are_on_lines_of_their_own() -> None:
    out, _ = Both(terminal=False).shows(
        token("Calling."),
        pb.GenerateResponse(tool_calls=[pb.ToolCallDelta(index=0, name="f", arguments='{"x"')]),
        pb.GenerateResponse(tool_calls=[pb.ToolCallDelta(index=0, arguments=": 1}")]),
        pb.GenerateResponse(tool_calls=[pb.ToolCallDelta(index=1, name="g", arguments="{}")]),
    )
    assert out == 'Calling.\nf {"x": 1}\ng {}\n'


def test_a_worker_cannot_drive_the_terminal() -> None:
    out, _ = Both(terminal=True).shows(token("a\x1b[2Jb"))
    assert out == "a\ufffd[2Jb\n"


def test_the_legend_is_for_colours_and_drafts() -> None:
    coloured, plain = Both(terminal=True), Both(terminal=False)
    coloured.screen.legend(2)
    assert "layer 2" in coloured.aside.getvalue()
    assert "layer 3" not in coloured.aside.getvalue()
    assert coloured.out.getvalue() == ""
    coloured.screen.legend(0)
    assert coloured.aside.getvalue().count("sampled") == 1
    plain.screen.legend(3)
    assert plain.aside.getvalue() == ""


USAGE = pb.Usage(
    prompt_tokens=20,
    cached_tokens=16,
    completion_tokens=9,
    steps=4,
    drafted_tokens=8,
    accepted_tokens=5,
    queue_seconds=1.0,
    total_seconds=1.5,
)


def test_the_closing_line() -> None:
    end = pb.End(reason=pb.FINISH_REASON_STOP, matched_token_id=1, usage=USAGE)
    assert closing_line(end, 9) == (
        "9 tokens in 0.50 s | 18.0 tokens a second | 2.00 tokens a step | 5 of 8 drafts accepted"
        " | prompt of 20, 16 cached | the model ended its answer"
    )


@pytest.mark.parametrize(
    ("end", "most", "said"),
    [
        (pb.End(reason=pb.FINISH_REASON_LENGTH, usage=USAGE), 0, "no room for more"),
        (pb.End(reason=pb.FINISH_REASON_LENGTH, usage=USAGE), 10, "no room for more"),
        (pb.End(reason=pb.FINISH_REASON_LENGTH, usage=USAGE), 9, "--max-tokens reached"),
        (pb.End(reason=pb.FINISH_REASON_STOP, matched_stop="x"), 9, "a --stop text came"),
    ],
)
def test_why_an_answer_ended(end: pb.End, most: int, said: str) -> None:
    assert closing_line(end, most).endswith(said)


@pytest.mark.parametrize("terminal", [True, False])
def test_what_follows_an_answer_that_is_cut_off_has_its_own_line(terminal: bool) -> None:
    silent, begun = Both(terminal=terminal), Both(terminal=terminal)
    for both in (silent, begun):
        both.screen.begin("def a")
    begun.screen.show(token("bc"), parsed=False)
    for both in (silent, begun):
        both.screen.end()
    assert silent.aside.getvalue().replace(DIM, "").replace(RESET, "") == "def a\n"
    assert begun.out.getvalue() == "bc\n"
    begun.screen.note("over")
    assert "aover" not in begun.aside.getvalue() or terminal  # there the answer parts them
