"""The two forms in which `fourstep generate` shows steps: coloured text and JSON lines.

Knows layout only; tokens have become text before they come here. Keeps true: a token's colour says
who proposed it (the MTP layer of that depth, or the backbone's own sampling), and the text is never
altered except that a terminal gets no control characters.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from runtime.request import Step, Summary
from server.errors import printable

# Foreground colours that read on dark and light terminals; sampled tokens keep the terminal's own.
DEPTH_STYLES = ("green", "cyan", "magenta")


class Output(Protocol):
    """Where the steps of one request go, in order."""

    def start(self, prompt: str) -> None: ...

    def step(self, step: Step, pieces: Sequence[str]) -> None:
        """`pieces` is the text of each of step.token_ids."""
        ...

    def end(self, summary: Summary, seconds: float) -> None: ...


class TextOutput:
    """For people: the prompt, the tokens as they come, and a closing line."""

    def __init__(self, console: Console, *, draft_tokens: int) -> None:
        self._console = console
        self._styles = DEPTH_STYLES[:draft_tokens]

    def start(self, prompt: str) -> None:
        if self._console.color_system is not None and not self._console.no_color and self._styles:
            self._legend()
        self._write(prompt, "dim")

    def step(self, step: Step, pieces: Sequence[str]) -> None:
        for index, piece in enumerate(pieces):
            self._write(piece, self._styles[index] if index < step.accepted else None)

    def end(self, summary: Summary, seconds: float) -> None:
        self._write("\n\n", None)
        self._write(closing_line(summary, seconds) + "\n", "dim")

    def _legend(self) -> None:
        self._write("sampled by the backbone", None)
        for depth, style in enumerate(self._styles, start=1):
            self._write(" | ", "dim")
            self._write(f"drafted by MTP layer {depth}", style)
        self._write("\n\n", None)

    def _write(self, text: str, style: str | None) -> None:
        if self._console.is_terminal:
            text = printable(text)
        if text:
            # A segment reaches the file as it is; printed as text, rich would expand tabs.
            segment = Segment(text, Style.parse(style) if style else None)
            self._console.print(Segments([segment]), end="", crop=False)


class JsonOutput:
    """For programs: one object a step, then one object with the counts."""

    def start(self, prompt: str) -> None:
        """Nothing: the caller knows its prompt."""

    def step(self, step: Step, pieces: Sequence[str]) -> None:
        self._line(
            token_ids=step.token_ids,
            text="".join(pieces),
            drafted=step.drafted,
            accepted=step.accepted,
        )

    def end(self, summary: Summary, seconds: float) -> None:
        self._line(
            done=True,
            finish_reason=summary.finish_reason,
            prompt_tokens=summary.prompt_tokens,
            completion_tokens=summary.completion_tokens,
            steps=summary.steps,
            tokens_per_step=summary.tokens_per_step,
            acceptance_by_position=summary.acceptance_by_position,
            seconds=seconds,
        )

    def _line(self, **fields: Any) -> None:
        sys.stdout.write(json.dumps(fields, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def closing_line(summary: Summary, seconds: float) -> str:
    """Tokens, speed, tokens a step and how often the draft of each depth was accepted."""
    count = summary.completion_tokens
    reason = {"stop": "the model ended its answer", "length": "--max-tokens reached"}
    parts = [
        f"{count} token{'s' if count != 1 else ''} in {seconds:.2f} s",
        f"{count / seconds:.1f} tokens a second",
    ]
    if summary.steps:
        parts.append(f"{summary.tokens_per_step:.2f} tokens a step")
    if summary.acceptance_by_position:
        rates = " ".join(f"{rate:.2f}" for rate in summary.acceptance_by_position)
        parts.append(f"accepted by position {rates}")
    return " | ".join([*parts, reason[summary.finish_reason]])
