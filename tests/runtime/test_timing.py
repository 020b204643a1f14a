"""Costs on a busy machine: what passes leaves no trace in them, what stays is told.

The clock and what others take are the test's own, so nothing here depends on this machine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtime import timing
from runtime.timing import LEAST, MORE_S, REPEATS, ROUNDS, Run, Timed, timed

COSTS = {"one": 0.001, "two": 0.002}  # seconds


@dataclass
class Machine:
    """Each run takes its cost times what `slowed` says of its round, and others take `busy` of the
    processors."""

    slowed: Callable[[str, int], float] = lambda _name, _round: 1.0
    busy: Callable[[int], float] = lambda _round: 0.0
    now: float = 0.0
    taken: float = 0.0
    least: float = 0.0
    round: float = 1e-9  # so each run once
    tick: float = 1e-9  # in which the system tells what others took
    runs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COSTS, 0))

    def run(self, name: str) -> None:
        number = self.runs[name] // REPEATS
        self.runs[name] += 1
        seconds = COSTS[name] * self.slowed(name, number)
        self.now += seconds
        self.taken += 2 * seconds * self.busy(number)  # of two processors

    @property
    def rounds(self) -> int:
        return self.runs["one"] // REPEATS

    def timed(self, monkeypatch: pytest.MonkeyPatch) -> Timed:
        monkeypatch.setattr(timing, "LEAST_S", self.least)
        monkeypatch.setattr(timing, "ROUND_S", self.round)
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing.os, "sched_getaffinity", lambda _: {0, 1})
        monkeypatch.setattr(timing, "_taken_by_others", lambda: self.taken // self.tick * self.tick)
        runs: list[tuple[str, Run]] = [(name, lambda n=name: self.run(n)) for name in COSTS]
        return timed(runs)


def right(made: Timed) -> bool:
    return all(made.quick[name] == pytest.approx(cost * 1e6) for name, cost in COSTS.items())


def test_a_quiet_machine_is_believed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    made = machine.timed(monkeypatch)
    assert right(made)
    assert (made.doubt, machine.rounds) == (None, ROUNDS)


def test_a_slow_run_is_repeated_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(slowed=lambda name, _: 500.0 if name == "two" else 1.0)
    assert machine.timed(monkeypatch).quick["two"] == pytest.approx(1e6)
    assert machine.runs == {"one": REPEATS * ROUNDS, "two": LEAST * ROUNDS}


def test_what_disturbs_some_rounds_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(slowed=lambda name, at: 9.0 if name == "two" and at < ROUNDS - 2 else 1.0)
    made = machine.timed(monkeypatch)
    assert right(made)
    assert (made.doubt, machine.rounds) == (None, ROUNDS)


def test_rounds_take_a_while_however_quick_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what disturbs the first ones alike would pass for the truth."""
    machine = Machine(slowed=lambda name, at: 1.5 if name == "two" and at < 9 else 1.0, least=0.9)
    made = machine.timed(monkeypatch)
    assert right(made)
    assert machine.rounds > ROUNDS
    machine = Machine(least=1.0)
    machine.timed(monkeypatch)
    assert machine.now == pytest.approx(1.0, abs=0.06)


def test_rounds_go_on_until_two_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(slowed=lambda name, at: 9.0 - at if name == "two" and at < 8 else 1.0)
    made = machine.timed(monkeypatch)
    assert right(made)
    assert made.doubt is None
    assert ROUNDS < machine.rounds <= 10


def test_rounds_go_on_until_others_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow from the first round on, all alike: only what others took tells."""
    machine = Machine(
        slowed=lambda _, at: 3.0 if at < ROUNDS + 1 else 1.0,
        busy=lambda at: 0.6 if at < ROUNDS + 1 else 0.0,
    )
    made = machine.timed(monkeypatch)
    assert right(made)
    assert (made.doubt, machine.rounds) == (None, ROUNDS + 3)


def test_what_does_not_pass_is_told_in_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(slowed=lambda _, at: 1.0 + at % 7 if at else 0.5)
    made = machine.timed(monkeypatch)
    assert made.doubt == "rounds differ by 100%"
    first = sum(COSTS.values()) * REPEATS * ROUNDS * 7
    assert machine.now < first + MORE_S
    machine = Machine(busy=lambda _: 0.5)
    assert machine.timed(monkeypatch).doubt == "others took 50% of the processors"
    assert machine.rounds > ROUNDS


def test_what_others_take_is_not_lost_between_two_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick run is done before the system counts again."""
    machine = Machine(busy=lambda _: 0.5, round=timing.ROUND_S, tick=0.07)
    made = machine.timed(monkeypatch)
    assert made.others == pytest.approx(0.5, abs=0.15)
    assert made.doubt is not None


def test_nobody_takes_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two clocks are not the same, nor read at once."""
    machine = Machine(busy=lambda _: -0.01)
    assert machine.timed(monkeypatch).others == 0.0


@pytest.mark.parametrize("lines", ["", "\n\n \n", "cpu0\n", "cpu0 \ncpu1\n", "cpu", "intr 5 x\n"])
def test_a_system_that_tells_little_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: str
) -> None:
    monkeypatch.setattr(timing, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(timing.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(timing.os, "sysconf", lambda _: 100)
    monkeypatch.setattr(timing.time, "process_time", lambda: 0.0)
    assert timing._taken_by_others() == 0
    (tmp_path / "stat").write_text(lines, encoding="utf-8")
    assert timing._taken_by_others() == 0
    (tmp_path / "stat").write_text(
        f"cpu 9 9 9 9\n{lines}\ncpu0 1 2 4 800 1600 8 16 32 64 128\ncpu1 1 2 4 800\ncpu2 9 9 9\n",
        encoding="utf-8",
    )
    assert timing._taken_by_others() == (1 + 2 + 4 + 8 + 16 + 32 + 1 + 2 + 4) / 100


def test_there_are_runs_and_rounds_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="something to time"):
        timed([])
    monkeypatch.setattr(timing, "ROUNDS", 1)
    with pytest.raises(AssertionError, match="two rounds"):
        timed([("one", lambda: None)])


def test_what_others_took_is_read_from_the_system() -> None:
    """Rising, but for what this process uses itself meanwhile and the ticks it is counted in."""
    before = timing._taken_by_others()
    sum(range(100_000))
    assert timing._taken_by_others() >= before - 0.5
