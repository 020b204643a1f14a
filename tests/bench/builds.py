"""The section on builds: how long the engines of step5-nano and of the release take to compile.

Each build runs in a process of its own with an empty cache, as on a fresh machine. The release's
weights are meta tensors of its dims, so nothing of it is on disk. `python -m tests.bench.builds
WHICH OUT` is that process; it prints one JSON object.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphs.checkpoint import Checkpoint
from graphs.config_json import parse_config
from runtime.bench.tables import Table
from runtime.build import BuildOptions, build_artifact
from tests.bench.document import Section
from tests.bench.subjects import NANO, PLAN
from tests.graphs.configs import release
from tests.graphs.meta_weights import meta_weights
from tests.sources import ROOT

NAMES = {"nano": "step5-nano", "release": "92 + 3 layers, release dims, shapes only"}
TEXT = """\
`make bench` (= `python -m tests.bench build`): the default engines (widths 1 to 4, one slot,
prefill 32 and 256), kernels included, from an empty cache, once. The release's weights are shapes
without data."""


def build(which: str, out: Path) -> dict[str, float]:
    """In the child: build and count."""
    if which == "nano":
        checkpoint = Checkpoint.open(NANO)
        config, weights = checkpoint.config, checkpoint.load()
    else:
        config = parse_config(release())
        weights = meta_weights(config)
    start = time.perf_counter()
    artifact = build_artifact(config, weights, out, BuildOptions(plan=PLAN))
    size = sum(path.stat().st_size for path in out.iterdir())
    return {
        "seconds": time.perf_counter() - start,
        "programs": len(artifact.programs),
        "bytes": size,
    }


def run(say: Callable[[str], object]) -> Section:
    found: dict[str, dict[str, float]] = {}
    for which, name in NAMES.items():
        say(f"building the engines of {name}")
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "tests.bench.builds", which, f"{scratch}/artifact"]
            environment = {**os.environ, "XDG_CACHE_HOME": f"{scratch}/cache"}
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True
            )
        found[which] = json.loads(done.stdout)
    return section(found)


def section(found: dict[str, dict[str, Any]]) -> Section:
    nano, release_ = found["nano"], found["release"]
    rows = tuple(
        (
            *(name, f"{found[which]['seconds']:.0f}", str(found[which]["programs"])),
            f"{found[which]['bytes'] / 1e6:.0f}",
        )
        for which, name in NAMES.items()
    )
    return Section(
        key="build",
        title="Builds",
        text=TEXT,
        tables=(Table(title="Engines", columns=("model", "s", "programs", "MB"), rows=rows),),
        numbers={
            "nano_s": nano["seconds"],
            "release_packages_over_nano": release_["programs"] / nano["programs"],
            "release_time_over_nano": release_["seconds"] / nano["seconds"],
        },
    )


def main() -> None:
    which, out = sys.argv[1:]
    sys.stdout.write(json.dumps(build(which, Path(out))) + "\n")


if __name__ == "__main__":
    main()
