"""`make soak`: twenty minutes of mixed load on the shipped checkpoint with compiled engines.

A line every round of half a minute. One that ended half way, or found something, goes on or begins
again where it was: the same seed and the number of the first round make the same load.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from server.options import NANO
from tests.soak.rounds import Load, soak, soak_file


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="the first round")
    parser.add_argument("--rounds", type=int, default=40, help="of half a minute")
    args = parser.parse_args()
    load = Load(users=12, asks=40, most_tokens=64, failure_s=3.0, seed=args.seed)
    with tempfile.TemporaryDirectory() as folder:
        config = soak_file(
            Path(folder), NANO, compiler="inductor", context=1024, slots=4, queued=10
        )
        rounds = range(args.first, args.first + args.rounds)
        soak(config, load, rounds=rounds, seconds=30.0, report=_say)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
