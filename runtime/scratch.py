"""Scratch folders: what is filled beside its target and becomes it whole, or not at all.

Knows names and locks. Does not know what is filled in. Keeps true: one that somebody fills is
nobody else's; what killed builds left in a folder, of whatever target, goes with the next that
fills one there; nothing else is touched. The lock is a file of its own, since not every file system
locks folders.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphs.cache import locked_if_free

_MARK, _LOCK = "fourstep-build-", ".lock"


@contextmanager
def scratch_beside(target: Path) -> Iterator[Path]:
    """A new folder, which is `target` when the block has ended, and is gone where that raises."""
    _remove_left(target.parent)
    with _new_lock(target) as lock:
        folder = lock.with_suffix("")
        folder.mkdir()
        try:
            yield folder
            folder.rename(target)
        except BaseException:
            shutil.rmtree(folder)
            raise


@contextmanager
def _new_lock(target: Path) -> Iterator[Path]:
    while True:
        try:
            file, name = tempfile.mkstemp(_LOCK, f".{target.name}.{_MARK}", target.parent)
        except OSError as error:  # by the name that the user knows
            raise OSError(error.errno, error.strerror, str(target)) from error
        os.close(file)
        lock = Path(name)
        with locked_if_free(lock) as free:
            if free:
                try:
                    yield lock
                finally:
                    lock.unlink()
                return


def _remove_left(parent: Path) -> None:
    for lock in parent.glob(f".*.{_MARK}*{_LOCK}"):
        # Another user's is theirs to remove.
        with suppress(PermissionError), locked_if_free(lock) as free:
            if free:
                if (folder := lock.with_suffix("")).exists():  # killed before it was made
                    shutil.rmtree(folder)
                lock.unlink()
