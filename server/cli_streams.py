"""The standard streams, in UTF-8 whatever the locale says.

Knows the three streams of a process. Keeps true: input that is set not to wait is waited for all
the same; what cannot be written is told by the stream's name, and is nobody else's fault: it is no
OSError, which could be a file's; a reader that goes away is not told at all, and one of errors
changes nothing.
"""

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

from server.errors import EXIT_USER_ERROR, fail

INPUT, OUTPUT, ERRORS = range(3)


class OutputError(ValueError):
    """A standard stream that takes no more."""


class _Input(io.RawIOBase):
    """Of a file that nobody closes."""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return INPUT

    def isatty(self) -> bool:
        return os.isatty(INPUT)

    def readinto(self, buffer: Any, /) -> int:
        while True:
            select.select([INPUT], [], [])
            with contextlib.suppress(BlockingIOError):  # somebody else has read it
                return os.readv(INPUT, [buffer])


class _Output(io.FileIO):
    def __init__(self, number: int, called: str) -> None:
        super().__init__(number, "wb", closefd=False)
        self._called = called

    def write(self, data: object, /) -> int:
        try:
            written = super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            if self.fileno() != ERRORS:
                raise
            return memoryview(data).nbytes  # type: ignore[arg-type]
        except OSError as error:
            raise OutputError(f"{self._called}: {error.strerror}") from error
        if written is None:  # it is set not to wait, and whoever reads it is slow
            raise OutputError(f"{self._called}: {os.strerror(errno.EAGAIN)}")
        return written


def name_streams() -> None:
    """From here on, as above. A stream that was closed from the beginning is empty, or goes
    nowhere, and no file that is opened later gets its number."""
    for number in (INPUT, OUTPUT, ERRORS):
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_Input()), encoding="utf-8")
    sys.stdout = _text(OUTPUT, "standard output")
    sys.stderr = _text(ERRORS, "standard error")


def _text(number: int, called: str) -> io.TextIOWrapper:
    raw = _Output(number, called)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=number == ERRORS or raw.isatty(),
    )


@contextlib.contextmanager
def telling_full() -> Iterator[None]:
    """What of the output fails in the block ends the process, with a line where there can be one;
    what is left of it is dropped, or Python would try again and fail in words of its own."""
    try:
        yield
        sys.stdout.flush()
    except OutputError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, OUTPUT)
        with contextlib.suppress(OutputError):
            fail(error, EXIT_USER_ERROR)
        os.dup2(nowhere, ERRORS)
        sys.exit(EXIT_USER_ERROR)
