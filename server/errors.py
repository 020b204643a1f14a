"""How a user's mistake ends a command: a line on stderr, exit code 2, no traceback.

Knows which exceptions a user can cause. Keeps true: it wraps the preparation of a command alone, so
a fault of our own while a model runs is never passed off as a wrong argument.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

EXIT_USER_ERROR = 2
# C0 and C1 controls but tab and newline: neither a model's text nor a name in a checkpoint may
# drive the terminal.
CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class ProblemsError(ValueError):
    """Several things that are wrong: each has a line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(problems)  # what a copy is made of
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "; ".join(self.problems)


def printable(text: str) -> str:
    """`text` with control characters replaced."""
    return text.translate(CONTROLS)


class Gathered:
    """Things that are looked at one after the other: what is wrong with any of them is raised at
    the end of `gathering`."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """One of them."""
        try:
            yield
        except (ValueError, OSError) as error:
            self.problems += problems_of(error)


@contextmanager
def gathering() -> Iterator[Gathered]:
    """Raises ProblemsError behind the block if anything was gathered."""
    gathered = Gathered()
    yield gathered
    if gathered.problems:
        raise ProblemsError(gathered.problems)


@contextmanager
def user_errors() -> Iterator[None]:
    """Report ValueError (every named error of graphs and runtime) and OSError as the user's."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise fail(error, EXIT_USER_ERROR) from error


@contextmanager
def named(option: str) -> Iterator[None]:
    """What goes wrong with a file or an address in the block is told by the option, or the key,
    that named it: OSError as ValueError."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{option}: {said_of(error)}") from error


def said_of(error: OSError) -> str:
    """The file and what is wrong with it, without the system's number."""
    file = "" if error.filename is None else f"{error.filename}: "
    return f"{file}{error.strerror or error}"


def problems_of(error: Exception) -> Sequence[str]:
    """What there is to say of it."""
    if isinstance(error, ProblemsError):
        return error.problems
    return [said_of(error) if isinstance(error, OSError) else str(error)]


def fail(error: Exception, code: int) -> typer.Exit:
    """Print `error`, each thing on one line; the exception to raise."""
    for text in problems_of(error):
        typer.echo(printable(f"fourstep: error: {' '.join(text.split())}"), err=True)
    return typer.Exit(code)
