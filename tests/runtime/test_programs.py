"""Which program a call gets, and what an artifact's programs refuse (fault D8)."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from graphs.artifact import Artifact
from graphs.ops.build import current_isa, kernels_loaded, set_isa
from graphs.plan import EnginePlan
from runtime.engine import Engine
from runtime.exchange import Turn
from runtime.programs import COMPILERS, MissingProgramError, Programs, programs_of
from runtime.request import SamplingParams
from tests.artifacts import PLAN, copy_of, eager_artifact, edit, load
from tests.graphs.whole import golden_model


def recorded(*, kind: str = "decode", rows: int) -> dict[str, Path]:
    """The programs of the engines that the manifest records with so many rows, and the others."""
    entries = eager_artifact().manifest.engines
    wanted = [entry for entry in entries if entry.kind != kind or entry.rows == rows]
    return {key: Path(key) for entry in wanted for key in entry.programs}


def engine(files: dict[str, Path] | None, plan: EnginePlan, **options: Any) -> Engine:
    model = golden_model()
    programs = Programs(files=files)
    asked: dict[str, Any] = {"precision": "fp32", "context": 128, "slots": 4, **options}
    return Engine(model.config, model.weights, programs=programs, plan=plan, **asked)


@pytest.mark.parametrize("width", PLAN.widths)
def test_an_engine_runs_the_programs_of_its_own_width_only(width: int) -> None:
    made = engine(
        recorded(rows=width), dataclasses.replace(PLAN, widths=(width,)), draft_tokens=width - 1
    )
    made.decode([Turn(slot=0, position=3, token=5)])
    for other in {1, 2, 3, 4} - {width}:
        plan = dataclasses.replace(PLAN, widths=(other,))
        with pytest.raises(MissingProgramError, match=r"no program decode-[a-z]+-[0-9a-f]{12}"):
            engine(recorded(rows=width), plan, draft_tokens=min(width, other) - 1)


@pytest.mark.parametrize(
    "change",
    [{"precision": "bf16"}, {"plan": dataclasses.replace(PLAN, prefill=(8,))}, {"slots": 2}],
)
def test_other_shapes_and_types_find_no_program(change: dict[str, Any]) -> None:
    files = {**recorded(rows=4), **recorded(rows=1)}
    engine(files, PLAN)
    if "slots" in change:
        engine(files, PLAN, **change)  # memory decides the size of the state, not the programs
        return
    plan = change.pop("plan", PLAN)
    with pytest.raises(MissingProgramError, match=f"among the {len(files)} of this artifact"):
        engine(files, plan, **change)


def test_an_artifact_brings_its_kernels_and_instruction_set(tmp_path: Path) -> None:
    folder, best = copy_of(eager_artifact(), tmp_path / "a"), eager_artifact().manifest.machine.isa
    edit(folder, lambda manifest: manifest["machine"].update(isa="scalar"))
    load(Artifact.open(folder))
    assert kernels_loaded()
    assert current_isa() == "scalar"
    programs = load(eager_artifact())
    assert current_isa() == best
    assert programs.files is None, "the eager compiler needs none"
    set_isa(best)


def test_an_artifact_of_an_unknown_compiler_is_refused(tmp_path: Path) -> None:
    folder = copy_of(eager_artifact(), tmp_path / "a")
    edit(folder, lambda manifest: manifest.update(compiler="other"))
    with pytest.raises(ValueError, match=r"compiler: other .* run: fourstep build"):
        programs_of(Artifact.open(folder))
    assert "other" not in COMPILERS


def test_programs_that_need_no_file_run() -> None:
    made = engine(None, PLAN)
    committed = made.prefill([5, 6, 7], 1, SamplingParams())
    assert len(committed.drafts) == 3
