"""How a user's mistake ends a command: one line on stderr, exit code 2, no traceback.

Knows which exceptions a user can cause. Keeps true: it wraps the preparation of a command alone, so
a fault of our own while a model runs is never passed off as a wrong argument.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

EXIT_USER_ERROR = 2
# C0 and C1 controls but tab and newline: neither a model's text nor a name in a checkpoint may
# drive the terminal.
CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def printable(text: str) -> str:
    """`text` with control characters replaced."""
    return text.translate(CONTROLS)


@contextmanager
def user_errors() -> Iterator[None]:
    """Report ValueError (every named error of graphs and runtime) and OSError as the user's."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise fail(error, EXIT_USER_ERROR) from error


def fail(error: Exception, code: int) -> typer.Exit:
    """Print `error` on one line; the exception to raise."""
    typer.echo(printable(f"fourstep: error: {' '.join(str(error).split())}"), err=True)
    return typer.Exit(code)
