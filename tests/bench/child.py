"""A program that stays loaded between measurements and answers each request with one JSON line.

Knows both ends of the pipe: `serve` in the child, `Child` in the parent. Keeps true: a child that
has died is an error with the end of what it wrote, and none outlives its parent's `with`.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TAIL = 2000


def serve(measure: Callable[[], dict[str, float]]) -> None:
    """In the child: one measurement for each line of stdin, until it closes."""
    answer(lambda _: measure())


def answer(measure: Callable[[str], dict[str, Any]], **hello: Any) -> None:
    """The same where the line says what to measure; `hello` is told at once."""
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever else prints must not look like an answer
    out.write(json.dumps(hello) + "\n")
    out.flush()
    for line in sys.stdin:
        out.write(json.dumps(measure(line.rstrip("\n"))) + "\n")
        out.flush()


class Child:
    """In the parent: starts the command, waits until it has loaded, then asks it on demand."""

    def __init__(self, command: Sequence[str], *, cwd: Path, log: Path):
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            self.hello = self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, line: str = "") -> dict[str, Any]:
        """One measurement. Raises RuntimeError when the program is gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            end = self._log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}:\n{end}")
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
