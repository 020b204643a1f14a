"""The user's cache folder, and the locks that let one process at a time fill a part of it.

Knows the XDG rule. Does not know what is cached: kernels and artifacts choose their own names.
Keeps true: two processes never hold locks of one name, so what `locked` locked stays, and what
`locked_if_free` locked may be removed while it is held; a lock ends with the process that holds it.
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
    """Hold the lock file at `path` unless another process does or removes it; whether it is held
    here, and may be removed."""
    try:
        file = path.open("r+")
    except FileNotFoundError:
        yield False
        return
    with file:
        yield _taken(file) and _is_at(path, file)


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: IO[str]) -> bool:
    """Who locked it before may have removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
