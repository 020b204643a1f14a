"""SIGTERM as a way to end: like Ctrl-C, with everything that is cleaned up then.

Knows this process and those that it has started. Does not know what runs. Keeps true: compilers end
with the command that started them, as a terminal's Ctrl-C ends them too, and what is written beside
them is removed once; a second SIGTERM does not cut that short. While there is nothing to clean up
yet, both signals end the process as the system does it.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

TERMINATED = 128 + signal.SIGTERM  # as shells say it
_PAUSE = 0.2  # seconds between looks


def end_on_sigterm() -> None:
    """Until somebody else handles it, SIGTERM raises SystemExit in the main thread."""
    signal.signal(signal.SIGTERM, _end)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """The block only imports. An exception in the middle of that would be a traceback, or the end
    of everything inside a library in C++, so signals end the process as if nobody handled them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in heard.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in heard.items():
            if handler is not None:  # somebody's in C
                signal.signal(number, handler)


def _end(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_started, daemon=True).start()
    sys.exit(TERMINATED)


def _end_started() -> None:
    """Again and again: threads that wait for a compiler may start the next before they hear."""
    while True:
        for process in list(started(os.getpid())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        time.sleep(_PAUSE)


def started(process: int) -> Iterator[int]:
    """The processes that it has started, and before each its own: a compiler's driver that ends
    last removes what the compiler wrote. None where the system does not tell."""
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            for child in map(int, file.read_text().split()):
                yield from started(child)
                yield child
