"""docs/results.md: the measured numbers, each beside the command that gives it.

Knows layout only. Medians carry the smallest and largest value of the rounds.
"""

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from tests.bench.speed import Speed
from tests.bench.start import CONTEXT, GENERATED


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of one process: its peak, and what it had to hold."""

    peak_bytes: int
    checkpoint_bytes: int
    state_bytes: int

    @property
    def needed_bytes(self) -> int:
        return self.checkpoint_bytes + self.state_bytes


@dataclass(frozen=True, kw_only=True)
class Start:
    """Fresh processes; `process_s` counts the interpreter and its imports. `tiny` ran the golden
    checkpoint, so its peak beyond its own bytes is Python, torch and what they keep."""

    process_s: list[float]
    first_token_s: list[float]
    model: Memory
    tiny: Memory


def spread(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def machine() -> str:
    """What the numbers were measured on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.processor() or platform.machine()
    return (
        f"{cpu}, {os.cpu_count()} cores seen, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )


def speed_table(kind: str, speeds: Sequence[Speed]) -> list[str]:
    """Rows by K, with the gain over K = 0 of the same rounds."""
    plain = speeds[0].tokens_per_second
    rows = []
    for speed in speeds:
        pairs = zip(speed.tokens_per_second, plain, strict=True)
        gains = [fast / slow for fast, slow in pairs]
        rows.append(
            f"| {kind} | {speed.draft_tokens} | {spread(speed.tokens_per_second, 1)} "
            f"| {spread(gains, 2)} | {speed.tokens_per_step:.2f} | {spread(speed.step_ms, 1)} |"
        )
    return rows


def memory_rows(start: Start) -> list[str]:
    """The model's share of memory against what it has to hold."""
    model, tiny = start.model, start.tiny
    libraries = tiny.peak_bytes - tiny.needed_bytes
    share = model.peak_bytes - libraries
    return [
        f"| checkpoint | {megabytes(model.checkpoint_bytes)} |",
        f"| state ({CONTEXT} positions) | {megabytes(model.state_bytes)} |",
        f"| peak of the process | {megabytes(model.peak_bytes)} |",
        f"| of that, Python and torch, found with a tiny checkpoint | {megabytes(libraries)} |",
        f"| the rest | {megabytes(share)} |",
        f"| the rest over checkpoint + state | {share / model.needed_bytes:.2f} |",
    ]


def megabytes(count: int) -> str:
    """Decimal, as inspect shows sizes."""
    return f"{count / 1e6:.1f} MB"


def render(speeds: dict[str, list[Speed]], start: Start, *, rounds: int, tokens: int) -> str:
    """The whole document."""
    table = [row for kind, rows in speeds.items() for row in speed_table(kind, rows)]
    return "\n".join(
        [
            "# Results",
            "",
            "Written by `make bench`; do not edit. Medians, with smallest and largest in brackets.",
            "",
            f"Machine: {machine()}.",
            "",
            "## Speed by draft length",
            "",
            f"`make bench` (= `python -m tests.bench`): step5-nano, eager, bf16, greedy, "
            f"one stream, at most {tokens} tokens a prompt,",
            f"{rounds} rounds with K = 0 to 3 interleaved; decode steps only, prefill left out. "
            "The gain is against K = 0 of the same round.",
            "",
            "| prompts | K | tokens a second | gain | tokens a step | ms a step |",
            "|---|---|---|---|---|---|",
            *table,
            "",
            "## Start",
            "",
            "`python -m tests.bench.start models/step5-nano`, in a fresh process "
            f"{len(start.process_s)} times.",
            "",
            "| | seconds |",
            "|---|---|",
            f"| opening the checkpoint to the first token | {spread(start.first_token_s, 2)} |",
            f"| starting Python to the end of {GENERATED} tokens | {spread(start.process_s, 2)} |",
            "",
            "## Memory",
            "",
            "Same command. Peak resident memory, mapped files included.",
            "",
            "| | |",
            "|---|---|",
            *memory_rows(start),
            "",
        ]
    )
