"""Scratch folders: whole or not at all, nobody else's, and what was left of them is removed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphs import cache
from graphs.cache import locked_if_free
from runtime import scratch
from runtime.scratch import scratch_beside


def fill(target: Path) -> None:
    with scratch_beside(target) as folder:
        (folder / "file").write_text("filled")
        assert not target.exists()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def leave(folder: Path, name: str) -> Path:
    """As a build that was killed."""
    left = folder / f".{name}.fourstep-build-left"
    left.mkdir()
    (left / "file").touch()
    lock = left.with_name(f"{left.name}.lock")
    lock.touch()
    return lock


def test_it_becomes_the_target(tmp_path: Path) -> None:
    fill(tmp_path / "out")
    assert names(tmp_path) == {"out"}
    assert (tmp_path / "out" / "file").read_text() == "filled"
    assert (tmp_path / "out").stat().st_mode & 0o055  # others may read it


def test_it_is_gone_where_filling_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), scratch_beside(tmp_path / "out"):
        raise KeyError
    assert names(tmp_path) == set()


def test_what_was_left_goes_with_the_next_of_any_target(tmp_path: Path) -> None:
    leave(tmp_path, "out")
    leave(tmp_path, "an[other]")
    (tmp_path / ".early.fourstep-build-left.lock").touch()  # killed before its folder was made
    fill(tmp_path / "out")
    assert names(tmp_path) == {"out"}


def test_what_is_nothing_of_ours_is_let_be(tmp_path: Path) -> None:
    mine = {".out.swp", ".out.abc", ".out.lock"}
    for name in mine:
        (tmp_path / name).touch()
    (tmp_path / ".out.link").symlink_to(tmp_path / "nowhere")
    fill(tmp_path / "out")
    assert names(tmp_path) == {"out", ".out.link", *mine}


def test_what_somebody_fills_is_not_removed(tmp_path: Path) -> None:
    with scratch_beside(tmp_path / "out") as folder:
        fill(tmp_path / "another")
        assert folder.exists()
    assert names(tmp_path) == {"out", "another"}


def test_what_another_user_left_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = leave(tmp_path, "theirs")

    @contextmanager
    def of_users(lock: Path) -> Iterator[bool]:
        if lock == left:
            raise PermissionError
        with locked_if_free(lock) as free:
            yield free

    monkeypatch.setattr(scratch, "locked_if_free", of_users)
    fill(tmp_path / "out")
    assert names(tmp_path) == {"out", left.name, left.with_suffix("").name}


def test_a_lock_that_was_taken_for_left_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process looked before ours had locked it, and removed it."""
    locks = []

    @contextmanager
    def too_late(lock: Path) -> Iterator[bool]:
        locks.append(lock)
        if len(locks) == 1:
            scratch._remove_left(tmp_path)
        with locked_if_free(lock) as free:
            yield free

    monkeypatch.setattr(scratch, "locked_if_free", too_late)
    with scratch_beside(tmp_path / "out") as folder:
        assert folder == locks[-1].with_suffix("")
        assert locks[-1].exists()
    assert len(set(locks)) > 1
    assert names(tmp_path) == {"out"}


def test_a_lock_that_was_removed_meanwhile_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    with locked_if_free(lock) as free:
        assert free
        with locked_if_free(lock) as second:
            assert not second

    def taken(_: object) -> bool:
        lock.unlink()
        lock.touch()  # another of the same name
        return True

    monkeypatch.setattr(cache, "_taken", taken)
    with locked_if_free(lock) as free:
        assert not free
    lock.unlink()
    with locked_if_free(lock) as free:
        assert not free
    assert not lock.exists()
