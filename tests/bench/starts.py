"""The sections on starting and on memory: fresh processes, one after the other.

Keeps true: the artifact is built before the first process is timed.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runtime.bench.tables import Table, spread
from tests.bench.document import Section
from tests.bench.start import CONTEXT, GENERATED
from tests.bench.subjects import NANO
from tests.server.tiny_checkpoint import write_checkpoint
from tests.sources import ROOT

REPEATS = 5
Run = dict[str, float]


def child(folder: Path, compiler: str) -> Run:
    """One process; `process_s` counts the interpreter and its imports."""
    began = time.time()
    command = [sys.executable, "-m", "tests.bench.start", str(folder), compiler, str(began)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return {**json.loads(done.stdout), "process_s": time.time() - began}


def run(say: Callable[[str], object]) -> list[Section]:
    say("start: building what is missing")
    child(NANO, "inductor")
    runs = []
    for number in range(REPEATS):
        runs.append(child(NANO, "inductor"))
        say(f"start: {number + 1} of {REPEATS}")
    with tempfile.TemporaryDirectory() as scratch:
        tiny = write_checkpoint(Path(scratch) / "tiny")
        child(tiny, "eager")
        tiny_runs = [child(tiny, "eager") for _ in range(REPEATS)]
    return [start_section(runs), memory_section(runs, tiny_runs)]


def start_section(runs: Sequence[Run]) -> Section:
    first = [run["first_token_s"] for run in runs]
    loaded = [run["loaded_token_s"] for run in runs]
    rows = (
        ("opening checkpoint and artifact to the first token", spread(loaded, 2)),
        ("starting Python to the first token", spread(first, 2)),
        (
            f"starting Python to the end of {GENERATED} tokens",
            spread([run["process_s"] for run in runs], 2),
        ),
    )
    return Section(
        key="start",
        title="Start",
        text=(
            "`make bench` (= `python -m tests.bench start`): step5-nano with engines that are "
            f"built, in a fresh process {len(runs)} times."
        ),
        tables=(Table(title="Start", columns=("", "seconds"), rows=rows),),
        numbers={
            "first_token_s": statistics.median(first),
            "loaded_token_s": statistics.median(loaded),
        },
    )


def memory_section(runs: Sequence[Run], tiny: Sequence[Run]) -> Section:
    """The model's share of memory against what it has to hold; `tiny` ran a checkpoint of a few
    kilobytes, so its peak is Python, torch and what they keep."""
    peak = statistics.median(run["peak_bytes"] for run in runs)
    held = tiny[0]["checkpoint_bytes"] + tiny[0]["state_bytes"]
    libraries = statistics.median(run["peak_bytes"] for run in tiny) - held
    needed = runs[0]["checkpoint_bytes"] + runs[0]["state_bytes"]
    rows = (
        ("checkpoint", megabytes(runs[0]["checkpoint_bytes"])),
        (f"state ({CONTEXT} positions)", megabytes(runs[0]["state_bytes"])),
        ("peak of the process", megabytes(peak)),
        ("of that, Python and torch, found with a tiny checkpoint", megabytes(libraries)),
        ("the rest", megabytes(peak - libraries)),
        ("the rest over checkpoint + state", f"{(peak - libraries) / needed:.2f}"),
    )
    return Section(
        key="memory",
        title="Memory",
        text="The same processes. Peak resident memory, mapped files included.",
        tables=(Table(title="Memory", columns=("", "MB"), rows=rows),),
    )


def megabytes(count: float) -> str:
    """Decimal, as inspect shows sizes."""
    return f"{count / 1e6:.1f}"
