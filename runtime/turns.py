"""Who runs Python where several threads want to: an engine's, from one call to the next.

Knows the interpreter's switch interval, which is how long who waits lets another thread go on. Does
not know engines or threads; it is meant for one engine's thread in a process. Keeps true: a thread
that has computed or slept outside Python has it back at once; who begins to wait between two calls
does not take it away, since to hand it over and back takes as long as a third of what an engine's
thread does there.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds. Python's own turn is several steps of a small model.
SHORT, WHOLE = 2e-5, 5e-3


@contextmanager
def aside() -> Iterator[None]:
    """While this thread, an engine's, leaves Python to others."""
    sys.setswitchinterval(SHORT)
    try:
        yield
    finally:
        sys.setswitchinterval(WHOLE)
