"""A build's folder appears whole or not at all, and a program that is wrong is never written."""

import dataclasses
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from graphs.artifact import Artifact
from graphs.chain import Call
from graphs.compile.check import ProgramError
from graphs.compile.compiler import EagerCompiler, Step
from graphs.errors import CheckpointError
from graphs.manifest import MANIFEST
from graphs.ops.build import KernelBuildError, set_threads
from graphs.plan import EnginePlan
from runtime import build, costs
from runtime.build import BuildOptions, build_artifact, open_checkpoint
from runtime.timing import Run, Timed
from tests.graphs import variants
from tests.graphs.whole import golden_model

TINY = BuildOptions(
    plan=EnginePlan(widths=(1, 2), batches=(1,), contexts=(128,), prefill=(4,)),
    precision="fp32",
    compiler="eager",
)


def built(out: Path, options: BuildOptions = TINY, **asked: Any) -> Artifact:
    model = golden_model()
    artifact = build_artifact(model.config, model.weights, out, options, **asked)
    set_threads(1)
    return artifact


def test_progress_is_told_and_the_folder_is_readable(tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    artifact = built(tmp_path / "deep" / "out", progress=lambda *told: said.append(told))
    said = [told for told in said if told[-1]]  # remarks are of the machine
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert artifact.folder.stat().st_mode & 0o777 == 0o755
    kinds = [what.partition(" ")[0] for what, _, _ in said]
    assert list(dict.fromkeys(kinds)) == ["compiling", "checking", "timing"]
    assert all(done <= total for _, done, total in said)
    assert said[-1] == ("timing", 1, 1)


def test_kernels_are_told_of_when_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs take longer: the count would stand still for as long."""
    said: list[tuple[str, int, int]] = []
    told, real = threading.Event(), build.compile_all

    def slow(*args: Any, **kwargs: Any) -> dict[str, Path]:
        assert told.wait(60), said
        return real(*args, **kwargs)

    def progress(*what: Any) -> None:
        said.append(what)
        if what[0] == "compiling kernels":
            told.set()

    monkeypatch.setattr(build, "compile_all", slow)
    built(tmp_path / "out", progress=progress)
    assert [what[:2] for what in said[:2]] == [
        ("compiling kernels and programs", 0),
        ("compiling kernels", 1),
    ]


def test_kernels_that_fail_are_not_told_of_after_the_last_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user would wait minutes for one line."""

    def endless(*_: Any, each: Callable[[str], object], **__: Any) -> NoReturn:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            each("a program")
        raise AssertionError("programs went on")

    monkeypatch.setattr(build, "build_kernels", kernels_fail)
    monkeypatch.setattr(build, "compile_all", endless)
    with pytest.raises(KernelBuildError, match="no compiler"):
        built(tmp_path / "out")


def pretended(runs: Sequence[tuple[str, Run]], spread: float = 1.0) -> Timed:
    """Of runs that are not made."""
    return Timed(quick={name: 1.0 for name, _ in runs}, spread=spread, others=0.0)


@pytest.mark.parametrize("depths", [0, 1, 2])
def test_a_model_with_fewer_layers_than_the_plan_could_use(
    tmp_path: Path, depths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no step of it needs is not timed, and not missed."""
    model = golden_model()
    weights = dataclasses.replace(model.weights, mtp=model.weights.mtp[:depths])
    plan = EnginePlan(batches=(1,), contexts=(128,), prefill=(4,))
    options = dataclasses.replace(TINY, plan=plan)
    monkeypatch.setattr(costs, "timed", pretended)
    found = build_artifact(model.config, weights, tmp_path / "out", options).manifest.costs
    set_threads(1)
    assert list(found.verify) == [f"1x{width}" for width in range(1, 2 + depths)]
    assert len(found.acceptance) == depths


def test_costs_to_doubt_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "timed", partial(pretended, spread=2.5))
    said: list[tuple[str, int, int]] = []
    built(tmp_path / "out", progress=lambda *told: said.append(told))
    [remark] = [what for what, _, total in said if not total]
    assert remark.startswith("the timing is doubtful, rounds differ by 150%: ")
    assert "build again in a quiet hour" in remark


def test_an_existing_folder_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="exists already; name a new folder"):
        built(tmp_path)
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(ValueError, match="exists already"):
        built(tmp_path / "file")


def kernels_fail(*_args: object, **_asked: object) -> Path:
    raise KernelBuildError("no compiler")


def wrong(self: EagerCompiler, call: Call, program: Path | None) -> Step:
    """The second depth of the chain forgets to draft."""
    if call.block.name == "draft-depth":
        return lambda: None
    return lambda: call.block(*call.args)


def interrupted(*_args: object) -> None:
    raise KeyboardInterrupt


FAILURES: dict[str, tuple[Any, str, Callable[..., Any], type[BaseException]]] = {
    "kernels": (build, "build_kernels", kernels_fail, KernelBuildError),
    "program": (EagerCompiler, "load", wrong, ProgramError),
    "interrupt": (costs, "step_costs", interrupted, KeyboardInterrupt),
    "disk": (Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError("full")), OSError),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_build_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    where, name, fails, error = FAILURES[failure]
    monkeypatch.setattr(where, name, fails)
    with pytest.raises(error):
        built(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_fit_is_built_and_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "total", lambda: 1000)
    manifest = built(tmp_path / "out").manifest
    assert (manifest.costs.verify, manifest.costs.acceptance) == ({}, ())


def test_a_lower_instruction_set_can_be_built_for(tmp_path: Path) -> None:
    from graphs.machine import this_machine
    from graphs.ops.build import current_isa, set_isa

    best = this_machine().isa
    options = BuildOptions(
        plan=TINY.plan, precision="fp32", compiler="eager", machine=this_machine("cpu-scalar")
    )
    try:
        artifact = built(tmp_path / "out", options)
        assert current_isa() == "scalar"
    finally:
        set_isa(best)
    assert artifact.manifest.machine.isa == "scalar"
    artifact.require_machine()


def test_no_weight_is_in_an_artifact(tmp_path: Path) -> None:
    """The same manifest, costs apart, for other values of the weights."""
    model = golden_model()

    def parts(folder: Path) -> dict[str, Any]:
        return {**json.loads((folder / MANIFEST).read_text()), "costs": None}

    first = parts(built(tmp_path / "one").folder)
    before = model.weights.head.clone()
    model.weights.head.neg_()
    try:
        assert parts(built(tmp_path / "two").folder) == first
    finally:
        model.weights.head.copy_(before)


def test_missing_mtp_tensors_matter_to_those_who_draft(tmp_path: Path) -> None:
    """Faults A1 and A12: engines are built for what is there; drafting asks for all."""
    folder = variants.copy(tmp_path / "c", "bf16")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    weights = content["weight_map"]
    content["weight_map"] = {k: v for k, v in weights.items() if "extra-001" not in v}
    index.write_text(json.dumps(content))
    (folder / "model-extra-001.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.layers\.10"):
        open_checkpoint(folder, drafting=True)
    _, loaded = open_checkpoint(folder, drafting=False)
    assert loaded.mtp == ()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("one two", "space"),
        (" one", "space"),
        ("t'q", "quote"),
        ('t"q', "quote"),
        ("b\\s", "backslash"),
    ],
)
def test_a_folder_for_temporary_files_that_torch_would_cut_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    """In the middle of a build."""
    model = golden_model()
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path / name))
    with pytest.raises(
        ValueError, match=rf"cannot be compiled in .*/{re.escape(name)}, for the {what}"
    ):
        build_artifact(model.config, model.weights, tmp_path / "a", BuildOptions())
    assert not (tmp_path / "a").exists()
