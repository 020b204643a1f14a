"""How fast this machine reads memory right now: the roof that decode speed is compared with.

Knows one buffer far larger than any cache and some threads. Does not know models. Keeps true: a
sample reads every byte of the buffer once a pass, each thread a part of its own, and takes the
middle pass; samples are taken between other measurements, because a machine's speed drifts. The
buffer lies on large pages, as weights do that fit: from small ones less is read.
"""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from graphs.pages import empty

BYTES = 512 * 2**20
PASSES = 5


class ReadSpeed:
    """`threads` readers over one buffer; use as a context manager, which stops the threads."""

    def __init__(self, threads: int, *, nbytes: int = BYTES):
        if threads < 1:
            raise ValueError(f"threads = {threads}: must be at least 1")
        # Touched here, so that no sample pays for the system handing out pages.
        self._parts = empty(nbytes // 4, dtype=torch.float32).fill_(1).chunk(threads)
        self._pool = ThreadPoolExecutor(threads)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def sample(self) -> float:
        """Bytes a second, the median of a few passes: as the steps beside it are measured."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # one core a reader, instead of a team for each
        try:
            seconds = statistics.median(self._pass() for _ in range(PASSES))
        finally:
            torch.set_num_threads(before)
        return self.nbytes / seconds

    def _pass(self) -> float:
        start = time.perf_counter()
        totals = list(self._pool.map(lambda part: part.sum(), self._parts))
        seconds = time.perf_counter() - start
        assert sum(float(total) for total in totals) > 0
        return seconds

    def __enter__(self) -> "ReadSpeed":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
