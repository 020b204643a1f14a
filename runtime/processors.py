"""How many of this process's processors the kernels use, step by step.

Knows the kernels' threads. Does not know engines. Keeps true: a step of one answer, which is short
and followed by its message at once, leaves some to whoever sends and reads that, and so does what
comes behind a prompt; all other work, which gains more by them, has all.
"""

import os

from graphs.ops.build import set_threads


class Processors:
    """`spare`: left free while one answer is decoded, as far as there is more than one. The kernels
    are loaded and use all (runtime.programs)."""

    def __init__(self, *, spare: int) -> None:
        self._all = len(os.sched_getaffinity(0))
        self._spare = min(spare, self._all - 1)
        self._sparing = False

    def use(self, *, alone: bool) -> None:
        """Before a call; `alone`: it decodes one answer."""
        if self._spare and alone != self._sparing:
            self._sparing = alone
            set_threads(self._all - self._spare if alone else self._all)

    def rest(self) -> None:
        """After a call whose outputs go out before the next: threads that look out for that would
        hold up who sends them."""
        self.use(alone=True)
