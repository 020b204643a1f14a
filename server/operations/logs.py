"""Log lines: one JSON object each for machines, or words for a terminal.

Knows Python's logging and the fields that a line is given. Does not know what is logged. Keeps
true: nobody who logs waits for whoever reads the log, since a thread of its own writes, and what it
is too slow for is dropped and counted; a line is one line, whatever is in it; of an exception its
type and where it happened are told and never its text, which may quote what somebody has sent.
"""

import json
import logging
import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, TextIO

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

WAITING = 10_000  # lines
PATIENCE_S = 2.0  # for the last lines, at the end
Trace = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
# Ours tell what happens; all others only what is wrong.
_OURS = ("server", "runtime", "graphs")


@contextmanager
def logging_to(
    stream: TextIO, form: Literal["text", "json"], *, lost: Callable[[], object]
) -> Iterator[None]:
    """All that is logged in the block is written to the stream. `lost` is called for each line that
    is dropped."""
    target = logging.StreamHandler(stream)
    target.setFormatter(_Json() if form == "json" else _Text())
    handler, root = _Background(target, lost), logging.getLogger()
    root.addHandler(handler)
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        yield
    finally:
        for name in _OURS:
            logging.getLogger(name).setLevel(logging.NOTSET)
        root.removeHandler(handler)
        handler.close()


class _Background(logging.Handler):
    """Leaves records to a thread that hands them to `target`."""

    def __init__(self, target: logging.Handler, lost: Callable[[], object]) -> None:
        super().__init__()
        self._target, self._lost = target, lost
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING)
        self._over = False
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._lost()

    def close(self) -> None:
        """Does not wait for ever: the reader may have stopped reading. What is not written by then
        never is, since the stream may be closed next."""
        try:
            self._waiting.put(None, timeout=PATIENCE_S)
        except queue.Full:
            self._lost()
        self._thread.join(PATIENCE_S)
        self._over = True
        super().close()

    def _write(self) -> None:
        while (record := self._waiting.get()) is not None and not self._over:
            self._target.handle(record)


class _Json(JsonFormatter):
    def __init__(self) -> None:
        names = {"levelname": "level", "name": "logger", "message": "event"}
        super().__init__(list(names), rename_fields=names, timestamp="time")

    def formatException(self, ei: Trace) -> str:
        return _where(ei)


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()} "
        said = [f"{self.formatTime(record, self.datefmt)} {level}{_line(record.getMessage())}"]
        for name, value in record.__dict__.items():
            if name not in RESERVED_ATTRS and value not in (None, ""):
                said.append(f"{name}={_shown(value)}")
        if record.exc_info:
            said.append(f"where={_shown(_where(record.exc_info))}")
        return " ".join(said)


def _where(trace: Trace) -> str:
    """The type of an exception, and the way to it from the outermost call."""
    kind, _, frames = trace
    if kind is None:
        return ""
    way = [f"{at.filename}:{at.lineno} {at.name}" for at in traceback.extract_tb(frames)]
    return " > ".join([*way, kind.__name__])


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def _line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)
