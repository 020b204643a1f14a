"""Compiling the kernels: what makes a new library, what is kept, and how a failure is told."""

import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from graphs.cache import cache_folder, locked
from graphs.ops import build
from graphs.ops.build import KernelBuildError, build_kernels, load_kernels

SOURCE = '#include "part.h"\nint answer() { return PART; }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny library in place of the kernels."""
    folder = tmp_path / "cpu"
    (folder / "kernels").mkdir(parents=True)
    (folder / "one.cpp").write_text(SOURCE)
    (folder / "part.h").write_text("#define PART 1\n")
    (folder / "two.cpp").write_text("int two() { return 2; }\n")
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


def test_a_library_is_built_once(sources: Path, tmp_path: Path, commands: list[str]) -> None:
    target = build_kernels(tmp_path / "out")
    assert target.read_bytes().startswith(b"\x7fELF")
    assert len(commands) == 3
    assert build_kernels(tmp_path / "out") == target
    assert len(commands) == 3
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {target.name, f"{target.stem}.sha256", ".lock", "objects"}


def test_a_library_that_is_not_as_it_was_built_is_built_again(
    sources: Path, tmp_path: Path
) -> None:
    target = build_kernels(tmp_path / "out")
    whole = target.read_bytes()
    for damaged in (whole[:1000], b"", whole + b"\0"):
        target.write_bytes(damaged)
        assert build_kernels(tmp_path / "out") == target
        assert target.read_bytes() == whole
    target.with_suffix(".sha256").unlink()
    assert build_kernels(tmp_path / "out").read_bytes() == whole


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is run, by output."""
    run, outputs = build.run_compiler, []

    def recorded(command: list[str]) -> None:
        outputs.append(Path(command[-1]).name)
        run(command)

    monkeypatch.setattr(build, "run_compiler", recorded)
    return outputs


def test_an_edit_compiles_what_it_touches(
    sources: Path, tmp_path: Path, commands: list[str]
) -> None:
    before = build_kernels(tmp_path / "out")
    commands.clear()
    (sources / "part.h").write_text("#define PART 2\n")
    assert build_kernels(tmp_path / "out") != before
    assert [name.partition("-")[0] for name in commands] == ["one", "fourstep"]


def test_a_compiler_error_is_told_and_leaves_no_library(sources: Path, tmp_path: Path) -> None:
    (sources / "two.cpp").write_text("int two() { return missing; }\n")
    with pytest.raises(KernelBuildError, match=r"(?s)two\.cpp.*missing.* not declared") as caught:
        build_kernels(tmp_path / "out", jobs=1)
    assert "\n" in str(caught.value)
    assert not list((tmp_path / "out").glob("*.so*"))
    (sources / "two.cpp").write_text("int two() { return 3; }\n")
    assert build_kernels(tmp_path / "out").exists()


def test_an_unresolved_symbol_is_an_error(sources: Path, tmp_path: Path) -> None:
    (sources / "two.cpp").write_text("int elsewhere();\nint two() { return elsewhere(); }\n")
    with pytest.raises(KernelBuildError, match="elsewhere"):
        build_kernels(tmp_path / "out")


def test_who_waits_for_another_build_hears_of_its_lock(sources: Path, tmp_path: Path) -> None:
    told: queue.Queue[Path] = queue.Queue()
    lock = tmp_path / "out" / ".lock"
    with ThreadPoolExecutor(1) as pool:
        with locked(lock):
            built = pool.submit(build_kernels, tmp_path / "out", waiting=told.put)
            assert told.get(timeout=120) == lock
        assert built.result().exists()
    assert told.empty()


def test_a_compiler_that_fails_leaves_no_half_output(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that is killed."""
    killed = tmp_path / "killed"
    killed.write_text('#!/bin/sh\nfor last; do :; done\necho half > "$last"\nexit 1\n')
    killed.chmod(0o755)
    monkeypatch.setattr(build, "_compiler", lambda: str(killed))
    monkeypatch.setattr(build, "_version", lambda _: "1")
    with pytest.raises(KernelBuildError):
        build_kernels(tmp_path / "out", jobs=1)
    assert list((tmp_path / "out" / "objects").iterdir()) == []


def test_a_machine_without_compiler_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    with pytest.raises(KernelBuildError, match=r"needs a C\+\+ compiler"):
        build_kernels(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_process_loads_one_library(tmp_path: Path) -> None:
    library = build_kernels(cache_folder() / "kernels")
    load_kernels(library)
    copy = tmp_path / library.name
    copy.symlink_to(library)
    load_kernels(copy)
    with pytest.raises(AssertionError, match="is loaded already"):
        load_kernels(tmp_path / "other.so")
