"""What a step costs outside the engine's programs: the same host code over programs that do
nothing.

Knows how to make an engine of such programs. Keeps true: everything else of a step runs as it is:
inputs filled, outputs read and checked, tokens scanned for the end.
"""

import itertools
import time
from pathlib import Path

from graphs.chain import Call
from graphs.compile.compiler import Step
from graphs.compile.program import Task
from runtime.engine import Engine
from runtime.generate import generate
from runtime.programs import Programs
from runtime.request import SamplingParams


class NothingCompiler:
    """Every program is empty."""

    name = "nothing"

    def compile(self, task: Task, folder: Path) -> None:
        return None

    def load(self, call: Call, program: Path | None) -> Step:
        return lambda: None


def nothing() -> Programs:
    return Programs(compiler=NothingCompiler())


def host_seconds(engine: Engine, steps: int) -> list[float]:
    """Seconds of each of `steps` decode steps of one request; `engine` runs empty programs.

    Its outputs stay 0, so each step commits one token and drafts as many as the engine drafts.
    """
    params = SamplingParams(max_tokens=steps + 1, ignore_eos=True)
    stream = generate(engine, [0], params)
    next(stream)
    seconds = []
    for _ in itertools.repeat(None, steps):
        start = time.perf_counter()
        next(stream)
        seconds.append(time.perf_counter() - start)
    return seconds
