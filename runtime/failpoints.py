"""Failures that a test can ask for by name, in a process that was started with them.

Knows names and counts. FOURSTEP_FAILPOINTS="engine.step=3,allocate=1" makes the third step and the
first allocation fail, each once. Does nothing where the variable is not set: this is for tests.
"""

import os

VARIABLE = "FOURSTEP_FAILPOINTS"
ONE_CALL = ("allocate", "engine.step", "sampler", "detokenizer")  # end the answers of one call
NAMES = (*ONE_CALL, "engine.lost")


class InjectedError(RuntimeError):
    """A failure that was asked for."""


def parse(text: str) -> dict[str, int]:
    """Names and the calls at which they fail. Raises ValueError."""
    found: dict[str, int] = {}
    for entry in filter(None, text.split(",")):
        name, _, count = entry.partition("=")
        if name not in NAMES or not count.isdecimal() or int(count) < 1:
            raise ValueError(f"{VARIABLE}: {entry!r} is not NAME=CALL with a name of {NAMES}")
        found[name] = int(count)
    return found


_armed = parse(os.environ.get(VARIABLE, ""))


def arm(points: dict[str, int]) -> None:
    """From now on these fail, and no others."""
    _armed.clear()
    _armed.update(points)


def reach(name: str) -> None:
    """Raises InjectedError if this call was asked to fail."""
    if not _armed or name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        del _armed[name]
        raise InjectedError(f"injected failure: {name}")
