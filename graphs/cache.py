"""The user's cache folder, and the lock that lets one process at a time fill a part of it.

Knows the XDG rule. Does not know what is cached: kernels and artifacts choose their own names.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/fourstep, or ~/.cache/fourstep; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fourstep"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, waiting for another process that holds it.

    The file stays: removing it would let two processes lock different files of one name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
