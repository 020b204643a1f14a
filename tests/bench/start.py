"""Start-up and memory of one process: `python -m tests.bench.start CHECKPOINT COMPILER BEGAN`.

Measured in a process of its own, since a warm one has its libraries and caches loaded; BEGAN is the
clock when it was started. Its artifact is built already. Prints one JSON object. What the libraries
take is found by running a tiny checkpoint the same way.
"""

import json
import sys
import time
from pathlib import Path

from runtime.engine import Engine
from runtime.generate import generate
from runtime.request import SamplingParams
from runtime.tokenizer import Tokenizer
from tests.bench.subjects import built

GENERATED = 64
CONTEXT = 4096


def peak_bytes() -> int:
    """Most resident memory so far, mapped files included. Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM")


def run(folder: Path, compiler: str, began: float) -> dict[str, float]:
    """Load, generate, and say how long the first token took, since the process began and since the
    checkpoint and the artifact were opened, and what memory it all took."""
    opened = time.time()
    what, _ = built(folder, lambda _: None, compiler=compiler)
    config = what.config
    tokenizer = Tokenizer.open(folder, vocab_size=config.vocab_size, bos_id=config.bos_id)
    engine = Engine(
        config,
        what.weights,
        programs=what.programs,
        plan=what.plan,
        context=CONTEXT,
    )
    params = SamplingParams(max_tokens=GENERATED, ignore_eos=True)
    steps = generate(engine, tokenizer.encode("def read_lines(path):\n"), params)
    next(steps)
    first_token = time.time()
    for _ in steps:
        pass
    return {
        "first_token_s": first_token - began,
        "loaded_token_s": first_token - opened,
        "peak_bytes": peak_bytes(),
        "checkpoint_bytes": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        "state_bytes": engine.state.nbytes,
    }


def main() -> None:
    folder, compiler, began = sys.argv[1:]
    sys.stdout.write(json.dumps(run(Path(folder), compiler, float(began))) + "\n")


if __name__ == "__main__":
    main()
