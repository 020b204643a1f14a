"""The user's cache folder, and the locks that let one process at a time fill a part of it.

Knows the XDG rule. Does not know what is cached: kernels and artifacts choose their own names.
Keeps true: a lock file stays, since removing it would let two processes lock different files of one
name; a lock ends with the process that holds it.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

Waiting = Callable[[Path], object]  # hears of the lock file


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/fourstep, or ~/.cache/fourstep; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fourstep"


@contextmanager
def locked(path: Path, waiting: Waiting | None = None) -> Iterator[None]:
    """Hold the lock file at `path`; `waiting` hears of it if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if not _taken(file):
            if waiting is not None:
                waiting(path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock file at `path` unless another process does; whether it is held here."""
    with path.open("w") as file:
        yield _taken(file)


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
