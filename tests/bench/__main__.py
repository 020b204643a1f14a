"""`make bench`: measures step5-nano on this machine and writes docs/results.md.

Numbers are printed and written, never asserted: a test that depends on a machine's speed is none.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from graphs.checkpoint import Checkpoint
from runtime.engine import Engine
from runtime.request import SamplingParams
from runtime.tokenizer import Tokenizer
from tests.bench.prompts import prompts
from tests.bench.report import Memory, Start, render
from tests.bench.speed import Speed, measure
from tests.server.tiny_checkpoint import write_checkpoint

ROOT = Path(__file__).parents[2]
NANO = ROOT / "models" / "step5-nano"
RESULTS = ROOT / "docs" / "results.md"
ROUNDS = 7
STARTS = 5
TOKENS = 96


def speeds(folder: Path, *, rounds: int, tokens: int) -> dict[str, list[Speed]]:
    """K = 0 to 3 over one set of weights, by kind of prompt."""
    checkpoint = Checkpoint.open(folder)
    config, weights = checkpoint.config, checkpoint.load()
    tokenizer = Tokenizer.open(folder, vocab_size=config.vocab_size, bos_id=config.bos_id)
    engines = [
        Engine(config, weights, draft_tokens=count, context=512)
        for count in range(len(weights.mtp) + 1)
    ]
    params = SamplingParams(max_tokens=tokens)
    return {
        kind: measure(
            engines,
            ids,
            params,
            rounds=rounds,
            progress=lambda text, kind=kind: say(f"{kind}: {text}"),
        )
        for kind, ids in prompts(folder, tokenizer).items()
    }


def child(folder: Path) -> dict[str, float]:
    """Run tests.bench.start and read what it measured."""
    command = [sys.executable, "-m", "tests.bench.start", str(folder)]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)


def starts(folder: Path, *, repeats: int) -> Start:
    """Fresh processes, one after the other."""
    runs: list[dict[str, float]] = []
    process_s: list[float] = []
    for number in range(repeats):
        begin = time.perf_counter()
        runs.append(child(folder))
        process_s.append(time.perf_counter() - begin)
        say(f"start: {number + 1} of {repeats}")
    with tempfile.TemporaryDirectory() as scratch:
        tiny = write_checkpoint(Path(scratch) / "tiny")
        tiny_runs = [child(tiny) for _ in range(repeats)]
    return Start(
        process_s=process_s,
        first_token_s=[run["first_token_s"] for run in runs],
        model=memory_of(runs),
        tiny=memory_of(tiny_runs),
    )


def memory_of(runs: list[dict[str, float]]) -> Memory:
    """The typical peak; the sizes are the same in every run."""
    return Memory(
        peak_bytes=int(statistics.median(run["peak_bytes"] for run in runs)),
        checkpoint_bytes=int(runs[0]["checkpoint_bytes"]),
        state_bytes=int(runs[0]["state_bytes"]),
    )


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> None:
    text = render(
        speeds(NANO, rounds=ROUNDS, tokens=TOKENS),
        starts(NANO, repeats=STARTS),
        rounds=ROUNDS,
        tokens=TOKENS,
    )
    RESULTS.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    say(f"written to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
