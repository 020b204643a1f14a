"""Texts that a user names: a file, or stdin for "-"."""

import sys
from pathlib import Path

from server.errors import named

STDIN = "-"


def read_text(source: str, option: str) -> str:
    """Raises ValueError naming the option where there is no such file, or the source where it is
    not UTF-8."""
    with named(option):
        data = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        name = "stdin" if source == STDIN else source
        raise ValueError(f"{name} is not UTF-8 text: {error.reason} at {error.start}") from error
