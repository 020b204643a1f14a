"""This program on the same model: `python -m tests.bench.peers.ours CHECKPOINT`.

Plain decoding, and width 4 with the scenario's acceptance forced as `fourstep bench` forces it.
"""

import sys
from pathlib import Path

from runtime.bench import forced
from runtime.bench.run import Options
from runtime.engine import Engine
from tests.bench.child import serve
from tests.bench.peers.scenario import ACCEPTANCE, DRAFTS, GENERATE, PREFIX, THREADS, prompt
from tests.bench.subjects import subject

WIDTH = 1 + DRAFTS
STEPS = {1: GENERATE, WIDTH: round(GENERATE / ACCEPTANCE)}
LENGTHS = {1: 1.0, WIDTH: ACCEPTANCE}
NAMES = {1: "decode", WIDTH: "mtp"}


class Ours:
    """Both engines and the continuation that steps are forced to."""

    def __init__(self, folder: Path):
        what = subject(folder, lambda text: sys.stderr.write(f"{text}\n"))
        options = Options(
            widths=tuple(STEPS),
            batches=(1,),
            prefix=PREFIX,
            steps=GENERATE,
            threads=THREADS,
        )
        self._engines: dict[int, Engine] = {w: what.engine(w, options) for w in STEPS}
        ids = prompt(what.config.vocab_size)
        self._tracks = [forced.record(self._engines[1], ids, GENERATE + 2 * WIDTH)]

    def measure(self) -> dict[str, float]:
        """Tokens a second plainly and with drafts, rows a second of prefill."""
        speeds: dict[str, float] = {}
        for width, engine in self._engines.items():
            [seconds] = forced.prefill(engine, self._tracks)
            length, steps = LENGTHS[width], STEPS[width]
            took = forced.run(engine, self._tracks, width=width, length=length, steps=steps)
            speeds[NAMES[width]] = length * steps / sum(took)
            speeds["prefill"] = PREFIX / seconds
        return speeds


def main() -> None:
    ours = Ours(Path(sys.argv[1]))
    serve(ours.measure)


if __name__ == "__main__":
    main()
