"""Small artifacts of the golden checkpoint, for tests that use them, damage them or build more.

An artifact of the eager compiler holds the kernels and a manifest and costs seconds. Keeps true: it
is built once into the user's cache, whatever the number of test processes, and never changed there;
tests that change one work on a copy.
"""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from graphs.artifact import Artifact
from graphs.compile.compiler import EagerCompiler
from graphs.manifest import MANIFEST
from graphs.ops.build import set_threads
from graphs.plan import EnginePlan
from runtime.build import BuildOptions
from runtime.programs import Programs, programs_of
from runtime.store import find_or_build
from tests.graphs.whole import golden_model

# Four slots of one row and one slot of four share the programs of layers; so do sixteen rows.
PLAN = EnginePlan(widths=(1, 4), batches=(1, 4), contexts=(256,), prefill=(16,))


def options(compiler: str = EagerCompiler.name) -> BuildOptions:
    return BuildOptions(plan=PLAN, precision="fp32", compiler=compiler)


@cache
def eager_artifact() -> Artifact:
    model = golden_model()
    return find_or_build(model.config, model.weights, options())


def copy_of(artifact: Artifact, folder: Path) -> Path:
    """A writable copy in `folder`, which must not exist."""
    return Path(shutil.copytree(artifact.folder, folder))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest's JSON in place."""
    path = folder / MANIFEST
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def load(artifact: Artifact) -> Programs:
    """Its programs; the kernels keep the one thread that tests give them."""
    programs = programs_of(artifact)
    set_threads(1)
    return programs
