"""`fourstep build`, `verify` and `generate --artifact`: what is said, where, and what is refused.

All with the eager compiler on the golden checkpoint: kernels and a manifest. stdout stays what a
machine reads; whatever is for people goes to stderr.
"""

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from graphs.artifact import Artifact
from graphs.compile.check import ProgramError
from graphs.machine import sku_names
from graphs.manifest import MANIFEST
from graphs.ops.build import KernelBuildError, set_isa, set_threads
from server import cli_build, cli_engine
from server.cli_build import progress_bar
from server.cli_commands import app
from server.cli_serve import open_served
from server.config import ModelSection, ServeConfig
from tests.artifacts import copy_of, eager_artifact, edit
from tests.server.tiny_checkpoint import write_checkpoint

SMALL = ("--compiler", "eager", "--precision", "fp32", "--widths", "1,4", "--batches", "1")
TINY = (*SMALL, "--contexts", "256", "--prefill", "16")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("build") / "checkpoint")


@pytest.fixture(scope="module")
def artifact(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Built on the command line, and what that said."""
    out = tmp_path_factory.mktemp("artifacts") / "golden"
    result = call("build", checkpoint, "--out", out, *TINY)
    assert result.exit_code == 0, result.output
    return out, result


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object, code: int = 2) -> str:
    result = call(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("fourstep: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def generated(checkpoint: Path, *arguments: object) -> tuple[list[dict[str, Any]], str]:
    """(JSON lines of stdout without the time, stderr)."""
    asked = ("--prompt", "def f(x):", "--max-tokens", 12, "--precision", "fp32", "--json")
    result = call("generate", checkpoint, *asked, *arguments)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    lines[-1].pop("seconds")
    return lines, result.stderr


def tokens(lines: list[dict[str, Any]]) -> list[int]:
    return [token for line in lines[:-1] for token in line["token_ids"]]


def test_serving_leaves_a_processor_to_others(
    checkpoint: Path, artifact: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one answer runs: its messages have to be sent. A command alone uses all."""
    spared = list[int]()
    monkeypatch.setattr(cli_engine, "Processors", lambda *, spare: spared.append(spare))
    generated(checkpoint, "--artifact", artifact[0])
    model = ModelSection(
        checkpoint=checkpoint, artifact=artifact[0], precision="fp32", context=256, slots=1
    )
    open_served(ServeConfig(model=model)).service.close()
    assert spared == [0, 1]


def test_build_prints_the_digest_and_tells_the_rest_to_people(
    artifact: tuple[Path, Result],
) -> None:
    out, result = artifact
    made = Artifact.open(out)
    assert result.stdout == f"{made.digest}\n"
    for part in ("compiling", "checking", "timing", f"built {out} in ", "0 programs, "):
        assert part in result.stderr
    assert made.manifest.plan.widths == (1, 4)
    assert made.manifest.plan.contexts == (256,)
    assert made.manifest.precision == "fp32"


def test_verify_describes_an_artifact(artifact: tuple[Path, Result]) -> None:
    out, _ = artifact
    digest = Artifact.open(out).digest
    result = call("verify", out, "--artifact-sha256", digest)
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    for part in ("eager, fp32", "widths 1 4", "programs 0 for 4 engines", "step 1x4 ", "torch "):
        assert part in words
    assert result.stdout.splitlines()[-1] == f"sha256 {digest}"
    assert result.stderr == ""


def test_off_a_terminal_a_table_is_not_cut(artifact: tuple[Path, Result], tmp_path: Path) -> None:
    folder = tmp_path / "/".join(["a" * 60, "b" * 60])
    folder.parent.mkdir()
    folder.symlink_to(artifact[0])
    result = call("verify", folder)
    assert result.stdout.splitlines()[0].split() == ["artifact", str(folder)]


def test_a_folder_that_cannot_be_made_is_told_by_its_name(checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "file" / "engines"
    target.parent.touch()
    said = refused("build", checkpoint, "--out", target, "--compiler", "eager")
    assert str(target.parent) in said
    assert ".lock" not in said


def test_off_a_terminal_progress_is_a_line_now_and_then() -> None:
    told = io.StringIO()
    with progress_bar(Console(file=told, width=40)) as report:
        for done in range(96):
            report("compiling layer" if done else "compiling kernels", done, 95)
            if done == 20:
                report("waiting for another process [that builds] (/a/long/lock)", 0, 0)
        report("timing", 0, 1)
        report("timing", 1, 1)
    lines = told.getvalue().splitlines()
    assert lines[:4] == [
        "compiling (95)",
        "compiling: 10 of 95",
        "compiling: 19 of 95",
        "waiting for another process [that builds] (/a/long/lock)",
    ]
    assert lines[-2:] == ["compiling: 95 of 95", "timing (1)"]
    assert len(lines) == 13


def test_off_a_terminal_a_long_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_build, "SILENCE_S", 0.01)
    told = io.StringIO()
    deadline = time.monotonic() + 60
    with progress_bar(Console(file=told, width=40)) as report:
        report("compiling kernels", 0, 95)
        while " s\n" not in told.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    first, second, *_ = told.getvalue().splitlines()
    assert first == "compiling (95)"
    assert second.startswith("compiling: 0 of 95 after ")


def test_remarks_stay_on_a_terminal() -> None:
    shown = io.StringIO()
    with progress_bar(
        Console(file=shown, force_terminal=True, highlight=False, width=40)
    ) as report:
        report("compiling kernels", 0, 95)
        report("waiting for [another]", 0, 0)
    assert "waiting for [another]" in shown.getvalue()


BAD: list[tuple[tuple[object, ...], str]] = [
    (("--widths", "1,x"), "--widths 1,x: must be numbers separated by commas"),
    (("--widths", ""), "--widths"),
    (("--widths", "4,1"), "widths = [4, 1]: must be rising"),
    (("--widths", "1,5"), "at most 4 positions"),
    (("--batches", "0"), "batches = [0]"),
    (("--contexts", "256,256"), "contexts = [256, 256]"),
    (("--prefill", "-1"), "prefill = [-1]"),
    (("--contexts", "99999999999"), "contexts = [99999999999]: must be from 97 to the model's 10"),
    (("--contexts", "3,4096"), "contexts = [3, 4096]: must be from 97"),
    (("--prefill", "32,99999999"), "prefill = [32, 99999999]: must be from 1 to the model's"),
    (("--sku", "h200"), f"--sku h200: this machine builds for {', '.join(sku_names())}"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
def test_wrong_options_are_refused_before_anything_is_made(
    checkpoint: Path, tmp_path: Path, options: tuple[object, ...], said: str
) -> None:
    out = tmp_path / "out"
    assert said in refused("build", checkpoint, "--out", out, "--compiler", "eager", *options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    assert "exists already" in refused("build", checkpoint, "--out", tmp_path, *TINY)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    said = refused("build", tmp_path / "nothing", "--out", tmp_path / "out", *TINY)
    assert f"{tmp_path / 'nothing' / 'config.json'}: no such file" in said


@pytest.mark.parametrize("error", [KernelBuildError("no compiler"), ProgramError("differs")])
def test_a_failed_build_is_exit_code_1(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli_build, "build_artifact", failing)
    assert str(error) in refused("build", checkpoint, "--out", tmp_path / "o", *TINY, code=1)


def test_another_sku_of_this_machine_can_be_built_for(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "scalar"
    try:
        result = call("build", checkpoint, "--out", out, *TINY, "--sku", "cpu-scalar")
        assert result.exit_code == 0, result.output
        assert "scalar" in call("verify", out).stdout
    finally:
        set_isa(sku_names()[0].removeprefix("cpu-"))


def test_verify_refuses_what_differs(artifact: tuple[Path, Result], tmp_path: Path) -> None:
    folder = copy_of(Artifact.open(artifact[0]), tmp_path / "copy")
    assert "pinned was 00" in refused("verify", folder, "--artifact-sha256", "00")
    edit(folder, lambda manifest: manifest["machine"].update(torch="1.0"))
    assert "does not fit: torch: " in refused("verify", folder)
    (folder / MANIFEST).write_text("{}")
    assert "reads manifests of format 1 only" in refused("verify", folder)
    assert "is no artifact" in refused("verify", tmp_path)


@pytest.mark.parametrize("spec", ["auto", 0, 1, 3])
def test_generate_runs_on_an_artifact(
    checkpoint: Path, artifact: tuple[Path, Result], spec: object
) -> None:
    """The tokens of eager blocks, and nothing but JSON lines on stdout."""
    out, digest = artifact[0], Artifact.open(artifact[0]).digest
    expected, _ = generated(checkpoint, "--compiler", "eager", "--spec-tokens", 0)
    pinned = ("--artifact", out, "--artifact-sha256", digest, "--spec-tokens", spec)
    found, said = generated(checkpoint, *pinned)
    set_threads(1)
    assert tokens(found) == tokens(expected)
    assert said == ""


def test_generate_refuses_an_artifact_that_does_not_fit(
    checkpoint: Path, artifact: tuple[Path, Result], tmp_path: Path
) -> None:
    out = artifact[0]
    asked = ("generate", checkpoint, "--prompt", "x", "--max-tokens", 3, "--artifact")
    said = refused(*asked, out)
    assert "precision: bf16 here, fp32 there" in said
    assert "Use --precision fp32, or run: fourstep build CHECKPOINT --out DIR --widths 1,4 " in said
    assert "--precision bf16, with a new folder" in said
    fp32 = ("--precision", "fp32")
    assert "pinned was 1" in refused(*asked, out, *fp32, "--artifact-sha256", "1")
    assert "is no artifact" in refused(*asked, tmp_path, *fp32)
    large = ("--prompt", "x", "--max-tokens", 400, "--artifact", out, *fp32)
    assert "context 40" in refused("generate", checkpoint, *large)
    narrow = ("--artifact", out, *fp32, "--spec-tokens", 2)
    assert call("generate", checkpoint, "--prompt", "x", "--max-tokens", 3, *narrow).exit_code == 0


def test_an_eager_engine_has_no_artifact(checkpoint: Path, artifact: tuple[Path, Result]) -> None:
    asked = ("generate", checkpoint, "--prompt", "x", "--compiler", "eager")
    assert "no meaning with --compiler eager" in refused(*asked, "--artifact", artifact[0])
    assert "no meaning" in refused(*asked, "--artifact-sha256", "0")


def test_the_first_generate_builds_and_says_so_on_stderr(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a build in the place of the user's that takes no time."""
    ready = copy_of(eager_artifact(), tmp_path / "ready")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = ("generate", checkpoint, "--prompt", "x", "--artifact-sha256", "0")
    assert "none is built: name --artifact" in refused(*asked)
    built: list[Path] = []

    def build(*_: object, progress: Any, **__: object) -> Artifact:
        progress("compiling kernels", 0, 1)
        built.append(ready)
        return Artifact.open(ready)

    monkeypatch.setattr(cli_engine, "find_or_build", build)
    lines, said = generated(checkpoint)
    set_threads(1)
    assert len(tokens(lines)) == 12
    assert built == [ready]
    for part in ("building this model's engines, once", "compiling (1)", f"built {ready}"):
        assert part in " ".join(said.split())
    monkeypatch.setattr(cli_engine, "cached_folder", lambda *_: ready)
    again, said = generated(checkpoint)
    set_threads(1)
    assert (tokens(again), said, built) == (tokens(lines), "", [ready])
