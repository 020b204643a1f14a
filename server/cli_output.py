"""The two forms in which `fourstep generate` shows steps: coloured text and JSON lines.

Knows layout only; tokens have become text before they come here. Keeps true: a token's colour says
who proposed it: the MTP layer of that depth, or the backbone's own sampling.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console

from runtime.answer import End, Output
from runtime.logprobs import TokenLogprobs
from runtime.numbers import Summary
from runtime.parsers.answer import Answer
from server.cli_ink import DEPTH_STYLES, Ink

TRIED = 0.1  # of the steps; a rate from fewer says little of the drafts


@dataclass(frozen=True, kw_only=True)
class Done:
    """One answer that is over; `parsed` where it answers a chat."""

    index: int
    end: End
    summary: Summary
    parsed: Answer | None = None

    @property
    def seconds(self) -> float:
        """From the slot to the end."""
        return self.end.numbers.total_s - self.end.numbers.queued_s


class Printer(Protocol):
    """Where the steps of one request go: answer after answer, each from its beginning on."""

    def start(self, prompt: str) -> None: ...

    def begin(self, index: int, answers: int) -> None: ...

    def step(self, output: Output) -> None: ...

    def end(self, done: Done) -> None: ...


class TextPrinter:
    """For people: the prompt, the tokens as they come, and a closing line."""

    def __init__(self, console: Console, *, draft_tokens: int) -> None:
        self._ink = Ink(console)
        self._styles = DEPTH_STYLES[:draft_tokens]
        self._drafts = draft_tokens > 0

    def start(self, prompt: str) -> None:
        self._ink.legend(self._styles)
        self._ink.write(prompt, "dim")

    def begin(self, index: int, answers: int) -> None:
        if index:
            self._ink.write(f"\nanswer {index + 1} of {answers}\n\n", "dim")

    def step(self, output: Output) -> None:
        assert output.step is not None
        for index, piece in enumerate(output.step.pieces):
            accepted = index < output.step.accepted
            self._ink.write(piece, self._styles[index] if accepted else None)

    def end(self, done: Done) -> None:
        self._ink.write("\n\n")
        self._ink.write(closing_line(done, drafts=self._drafts) + "\n", "dim")


class JsonPrinter:
    """For programs: one object a step, then one object with the counts; with several answers each
    has its `index`."""

    def __init__(self, *, many: bool) -> None:
        self._many = many

    def start(self, prompt: str) -> None:
        """Nothing: the caller knows its prompt."""

    def begin(self, index: int, answers: int) -> None:
        """Nothing: each object says which answer it is of."""

    def step(self, output: Output) -> None:
        step = output.step
        assert step is not None
        fields: dict[str, Any] = {
            "token_ids": step.token_ids,
            "text": "".join(step.pieces),
            "drafted": step.drafted,
            "accepted": step.accepted,
        }
        if output.logprobs is not None:
            fields["logprobs"] = [_logprobs(token) for token in output.logprobs]
        self._line(output.index, fields)

    def end(self, done: Done) -> None:
        summary, numbers = done.summary, done.end.numbers
        fields: dict[str, Any] = {
            "done": True,
            "finish_reason": summary.finish_reason,
            "matched": done.end.matched,
            "prompt_tokens": summary.prompt_tokens,
            "cached_tokens": numbers.cached_tokens,
            "completion_tokens": summary.completion_tokens,
            "steps": summary.steps,
            "tokens_per_step": summary.tokens_per_step,
            "acceptance_by_position": summary.acceptance_by_position,
            "prefill_seconds": numbers.prefill_s,
            "decode_seconds": numbers.decode_s,
            "seconds": done.seconds,
        }
        if done.parsed is not None:
            fields |= dataclasses.asdict(done.parsed)
        self._line(done.index, fields)

    def _line(self, index: int, fields: dict[str, Any]) -> None:
        which = {"index": index} if self._many else {}
        sys.stdout.write(json.dumps(which | fields, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def _logprobs(token: TokenLogprobs) -> dict[str, Any]:
    top = [{"token_id": other, "logprob": logprob} for other, logprob in token.top]
    return {"token_id": token.token, "logprob": token.logprob, "top": top}


def closing_line(done: Done, *, drafts: bool) -> str:
    """Tokens, speed, tokens a step and how often the draft of each depth was accepted; `drafts`:
    whether steps may have some."""
    summary, seconds = done.summary, done.seconds
    count = summary.completion_tokens
    parts = [
        f"{count} token{'s' if count != 1 else ''} in {seconds:.2f} s",
        f"{count / seconds:.1f} tokens a second",
    ]
    if summary.steps:
        parts.append(f"{summary.tokens_per_step:.2f} tokens a step")
    drafted = summary.drafted_at[0] if summary.drafted_at else 0
    if drafts and drafted < summary.steps:
        parts.append(f"drafts in {drafted} of {summary.steps} steps")
    tried = zip(summary.acceptance_by_position, summary.drafted_at, strict=True)
    if rates := [f"{rate:.2f}" for rate, steps in tried if steps >= TRIED * summary.steps]:
        parts.append(f"accepted by position {' '.join(rates)}")
    return " | ".join([*parts, _reason(done)])


def _reason(done: Done) -> str:
    if done.summary.finish_reason == "length":
        return "--max-tokens reached"
    if isinstance(done.end.matched, str):
        return "a --stop text came"
    return "the model ended its answer"
