"""A value made of files, made anew when they change.

Knows files' times and sizes. Does not know what is in them. Keeps true: a bad new version leaves
the old one in place and is told once; a version that changes while it is read is read again.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)
Seen = tuple[tuple[int, ...] | None, ...]


class Reloading(Generic[T]):
    """`read` makes the value, and raises ValueError or OSError, when this is made too."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        self._paths, self._read = tuple(paths), read
        self._lock = threading.Lock()
        self._seen = self._look()
        self.value = read()

    def refresh(self) -> bool:
        """Look at the files; whether `value` is another one now. From any thread."""
        with self._lock:
            seen = self._look()
            if seen == self._seen:
                return False
            self._seen = seen
            try:
                value = self._read()
            except (ValueError, OSError) as error:
                _log.warning("%s; what was read before stays in use", error)
                return False
            if self._look() != seen:
                self._seen = ()
                return False
            self.value = value
            _log.info("read again: %s", ", ".join(map(str, self._paths)))
            return True

    def _look(self) -> Seen:
        return tuple(map(_look, self._paths))


def _look(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
