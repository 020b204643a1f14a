"""A full disk is one line that names the folder, whatever noticed it and however it says so."""

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from graphs import disk
from graphs.disk import scratch_folder, writing
from graphs.errors import DiskError

Fill = Callable[[Path], None]


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Makes a folder one that takes no more."""
    full: list[Path] = []
    made = tempfile.TemporaryFile

    def temporary(*, dir: Path) -> IO[Any]:
        if dir in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return made(dir=dir)

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", temporary)
    return full.append


def told(error: Exception, *folders: Path) -> str:
    with pytest.raises(DiskError) as caught, writing(*folders):
        raise error
    assert caught.value.__cause__ is error
    return str(caught.value)


def test_a_library_that_says_it_in_words_of_its_own(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path)
    said = told(RuntimeError("basic_ios::clear: iostream error"), tmp_path)
    assert said.startswith(f"no space left in {tmp_path} for engines (")
    assert said.endswith("MB free). Make room there, or name another folder; then run this again")
    assert "\n" not in said


def test_the_folder_for_temporary_files_is_asked_too(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    fill(tmp_path)
    said = told(RuntimeError("cannot unpack"))
    assert f"{tmp_path} for temporary files (" in said
    assert "set TMPDIR to a folder with more" in said


def test_the_scratch_of_a_build_goes_by_the_name_that_its_user_knows(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as scratch:
        monkeypatch.setenv("TMPDIR", scratch)
        (Path(scratch) / "header.i").write_text("half")
        fill(tmp_path)
        assert f"{tmp_path} for temporary files (" in told(RuntimeError("cannot compile"))
    assert list(tmp_path.iterdir()) == []


def test_the_cache_can_be_moved(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels = tmp_path / "fourstep" / "kernels"
    kernels.mkdir(parents=True)
    fill(kernels)
    said = told(RuntimeError("ld returned 1"), kernels / "not" / "yet")
    assert f"{kernels} for the cache of engines (" in said
    assert "set XDG_CACHE_HOME" in said


def test_there_may_be_room_again_when_it_is_told(tmp_path: Path) -> None:
    """A compiler removes what it could not finish: then its words count."""
    compiler = RuntimeError("fatal error: when writing output to x.i: No space left on device")
    assert "no space left in " in told(compiler, tmp_path)
    wrapped = RuntimeError("lowering failed")
    wrapped.__cause__ = OSError(errno.EDQUOT, "over quota")
    assert "no space left in " in told(wrapped, tmp_path)


def test_all_that_python_would_take_may_be_full(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it finds no folder for temporary files, and says so instead of what was wrong."""
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "gettempdir", missing)
    fill(Path("/tmp"))
    assert "no space left in /tmp for temporary files (" in told(RuntimeError("cannot write"))


def missing() -> str:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")


def test_locks_of_processes_need_room_too(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(disk, "_SHARED", shared)
    fill(shared)
    said = told(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), tmp_path)
    assert f"{shared} for locks of processes (" in said


@pytest.mark.parametrize("error", [ValueError("wrong"), OSError(errno.EACCES, "denied")])
def test_a_full_folder_does_not_explain_what_says_itself_what_it_is(
    tmp_path: Path, fill: Fill, error: Exception
) -> None:
    fill(tmp_path)
    with pytest.raises(type(error)) as caught, writing(tmp_path):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("error", [RuntimeError("differs"), OSError(errno.EACCES, "denied")])
def test_what_a_full_disk_does_not_explain_stays_what_it_was(
    tmp_path: Path, error: Exception
) -> None:
    with pytest.raises(type(error)) as caught, writing(tmp_path):
        raise error
    assert caught.value is error


def test_the_first_to_tell_is_the_one_that_is_heard(tmp_path: Path) -> None:
    with pytest.raises(DiskError) as caught, writing(tmp_path), writing():
        raise DiskError("no space left in there")
    assert str(caught.value) == "no space left in there"
