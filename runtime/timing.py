"""Times runs beside one another on a machine that others may be using too.

Knows rounds and disturbances. Does not know what runs. Keeps true: a disturbance only ever adds, so
of each run the quickest round counts; until two rounds of each agree and others have left the
processors alone for one there are more, for a limited time, and a doubt that remains is told.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Run = Callable[[], object]

ROUNDS, REPEATS = 5, 20
LEAST, ENOUGH_S = 4, 0.5  # a run that takes longer is repeated less often, but so often
ROUND_S = 0.3  # of a round at least: what others took is told in hundredths of a second
LEAST_S = 4.0  # seconds of rounds: what disturbs a small model for one second would spoil them all
MORE_S, MORE = 6.0, 2.0  # seconds of further rounds at most, and by those of the first
AGREE = 1.1  # the quickest round but one by the quickest
BUSY = 0.2  # of the processors, taken by others
_STAT = Path("/proc/stat")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Microseconds by run. `spread` is the worst of any; `others` is the share of the processors
    that others had in the round in which they had least."""

    quick: Mapping[str, float]
    spread: float
    others: float

    @property
    def doubt(self) -> str | None:
        """Why not to believe it."""
        if self.spread > AGREE:
            return f"rounds differ by {self.spread - 1:.0%}"
        if self.others > BUSY:
            return f"others took {self.others:.0%} of the processors"
        return None


def timed(runs: Sequence[tuple[str, Run]]) -> Timed:
    """Each run many times, all taking turns."""
    assert runs, "there is something to time"
    assert ROUNDS > 1, "two rounds are compared"
    start = time.perf_counter()
    rounds: list[Timed] = []
    while len(rounds) < ROUNDS or time.perf_counter() - start < LEAST_S:
        rounds.append(_round(runs))
    lasted = time.perf_counter() - start
    until = start + lasted + min(MORE_S, MORE * lasted)
    while (made := _sum(rounds)).doubt is not None and time.perf_counter() < until:
        rounds.append(_round(runs))
    return made


def _round(runs: Sequence[tuple[str, Run]]) -> Timed:
    start, before = time.perf_counter(), _taken_by_others()
    quick = dict.fromkeys((name for name, _ in runs), math.inf)
    while (lasted := time.perf_counter() - start) < ROUND_S:
        quick = {name: min(quick[name], _quick(run)) for name, run in runs}
    others = (_taken_by_others() - before) / (lasted * len(os.sched_getaffinity(0)))
    return Timed(quick=quick, spread=1.0, others=max(0.0, others))


def _sum(rounds: Sequence[Timed]) -> Timed:
    best = {name: sorted(made.quick[name] for made in rounds)[:2] for name in rounds[0].quick}
    return Timed(
        quick={name: first for name, (first, _) in best.items()},
        spread=max(second / first for first, second in best.values()),
        others=min(made.others for made in rounds),
    )


def _quick(run: Run) -> float:
    """Microseconds of one run among many: the first few warm its code and threads."""
    times: list[float] = []
    while len(times) < LEAST or (len(times) < REPEATS and sum(times) < ENOUGH_S * 1e6):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.quantiles(times, n=4)[0]


def _taken_by_others() -> float:
    """Processor seconds, on the processors that this process may use, that went to others so far;
    up to a constant."""
    if not _STAT.exists():
        return 0.0
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in _STAT.read_text().splitlines():
        name, _, fields = line.partition(" ")
        if name in mine:
            # user, nice, system, idle, wait, irq, softirq, steal; a sandbox's may end earlier.
            spent = [int(field) for field in fields.split()[:8]]
            ticks += sum(spent) - sum(spent[3:5])
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()
