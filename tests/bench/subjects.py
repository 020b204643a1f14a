"""The models that are measured, with compiled engines: step5-nano and the synthetic one.

Knows where both are and which shapes the benchmarks use. Engines come from the user's cache, built
there if need be. Keeps true: every benchmark of one model runs the same artifact.
"""

from collections.abc import Callable
from pathlib import Path

from graphs.artifact import Artifact
from graphs.checkpoint import Checkpoint
from graphs.ops.build import set_threads
from graphs.plan import EnginePlan
from graphs.shards import INDEX_FILE
from graphs.synthetic import SyntheticDims
from graphs.synthetic_weights import write_synthetic
from runtime.bench.run import Subject
from runtime.build import BuildOptions
from runtime.programs import programs_of
from runtime.resident import resident
from runtime.store import find_or_build
from tests.sources import ROOT

NANO = ROOT / "models" / "step5-nano"
SYNTHETIC = ROOT / "build" / "bench" / "synthetic"
PLAN = EnginePlan()
SYNTHETIC_PLAN = EnginePlan(batches=(1, 4))
THREADS = 2


def synthetic(say: Callable[[str], object]) -> Path:
    """The folder of the synthetic checkpoint, written once."""
    if not (SYNTHETIC / INDEX_FILE).exists():
        say("writing the synthetic checkpoint")
        write_synthetic(SYNTHETIC, SyntheticDims())
    return SYNTHETIC


def subject(folder: Path, say: Callable[[str], object]) -> Subject:
    return built(folder, say)[0]


def built(
    folder: Path,
    say: Callable[[str], object],
    *,
    compiler: str = "inductor",
    plan: EnginePlan | None = None,
) -> tuple[Subject, Artifact]:
    """The checkpoint's weights and the programs that run them on THREADS threads; the artifact."""
    plan = plan or (SYNTHETIC_PLAN if folder == SYNTHETIC else PLAN)
    checkpoint = Checkpoint.open(folder)
    weights = resident(checkpoint.load())
    artifact = find_or_build(
        checkpoint.config,
        weights,
        BuildOptions(plan=plan, compiler=compiler),
        progress=lambda what, done, total: say(f"{what} ({done} of {total})"),
    )
    programs = programs_of(artifact)
    set_threads(THREADS)
    return Subject(
        config=checkpoint.config, weights=weights, programs=programs, plan=plan
    ), artifact
