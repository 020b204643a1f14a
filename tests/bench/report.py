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


@dataclass(frozen=True, kw_only=True)
class Start:
    """Start-up and memory of fresh processes; `process_s` counts the interpreter and imports."""

    process_s: list[float]
    first_token_s: list[float]
    peak_bytes: int
    idle_bytes: int
    checkpoint_bytes: int
    state_bytes: int


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
        f"{cpu}, {os.cpu_count()} cores seen, {torch.get_num_threads()} threads, "
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
    grown = start.peak_bytes - start.idle_bytes
    needed = start.checkpoint_bytes + start.state_bytes
    return [
        f"| checkpoint | {start.checkpoint_bytes / 1e6:.1f} MB |",
        f"| state ({4096} positions) | {start.state_bytes / 1e6:.1f} MB |",
        f"| peak of the process | {start.peak_bytes / 1e6:.1f} MB |",
        f"| of that, Python and its libraries before a model is opened "
        f"| {start.idle_bytes / 1e6:.1f} MB |",
        f"| the rest over checkpoint + state | {grown / needed:.2f} |",
    ]


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
            f"| starting Python to the end of {64} tokens | {spread(start.process_s, 2)} |",
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
