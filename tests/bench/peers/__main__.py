"""`make bench-peers`: this program, llama.cpp and transformers on one synthetic model.

All are measured in turn, round after round, with the memory's speed before each, and nothing else
runs. Numbers go to docs/results.md; none is judged here.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from graphs.checkpoint import Checkpoint
from graphs.synthetic import SyntheticDims
from runtime.bench.roof import ReadSpeed
from tests.bench.child import Child
from tests.bench.document import publish
from tests.bench.peers.build import llama_programs
from tests.bench.peers.llama import Server, run_bench
from tests.bench.peers.scenario import THREADS, prompt
from tests.bench.peers.section import LLAMA, OURS, TRANSFORMERS, Contender, section
from tests.bench.peers.step35 import write_step35
from tests.bench.subjects import synthetic
from tests.sources import ROOT

BUILD = ROOT / "build" / "peers"
ROUNDS = 5
GGUF = "synthetic.gguf"

Measure = Callable[[], dict[str, float]]


def prepare() -> tuple[Path, Path]:
    """The synthetic checkpoint and its GGUF, written once."""
    folder, model = synthetic(say), BUILD / GGUF
    if not model.exists():
        say("writing it as GGUF")
        write_step35(Checkpoint.open(folder), model)
    return folder, model


def rounds(
    measures: dict[str, list[Measure]], memory: ReadSpeed
) -> tuple[list[Contender], list[float]]:
    """Every program once a round, the order turned by one each round."""
    contenders = {name: Contender(name=name) for name in measures}
    roof: list[float] = []
    order = list(measures)
    for number in range(ROUNDS):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            for measure in measures[name]:
                roof.append(memory.sample())
                contenders[name].add(measure())
        shown = {
            name: {k: f"{v[-1]:.1f}" for k, v in c.speeds.items()} for name, c in contenders.items()
        }
        say(f"round {number + 1} of {ROUNDS}: {shown}")
    return list(contenders.values()), roof


def child(source: str, folder: Path) -> Child:
    """The module tests.bench.peers.SOURCE as a process of its own."""
    command = [sys.executable, "-m", f"tests.bench.peers.{source}", str(folder)]
    return Child(command, cwd=ROOT, log=BUILD / f"{source}.log")


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> None:
    programs = llama_programs(BUILD, say)
    folder, model = prepare()
    ids = prompt(SyntheticDims().vocab)
    with ExitStack() as stack:
        memory = stack.enter_context(ReadSpeed(THREADS))
        say("loading the programs")
        children = {
            name: stack.enter_context(child(source, folder))
            for name, source in ((OURS, "ours"), (TRANSFORMERS, "eager_transformers"))
        }
        server = stack.enter_context(
            Server(programs["llama-server"], model, BUILD / "llama-server.log")
        )
        measures: dict[str, list[Measure]] = {
            OURS: [children[OURS].ask],
            LLAMA: [
                lambda: run_bench(programs["llama-bench"], model),
                lambda: server.ask(ids),
            ],
            TRANSFORMERS: [children[TRANSFORMERS].ask],
        }
        contenders, roof = rounds(measures, memory)
    publish([section(contenders, roof)])


if __name__ == "__main__":
    main()
