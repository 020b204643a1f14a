"""Mixes of lengths, arrivals, and what is refused."""

import itertools
import random
import statistics

import pytest

from server.load.plan import Job, Lengths, Load

FOUR = Lengths.parse("4", "--x")


def test_a_mix_of_ranges() -> None:
    mix = Lengths.parse("8:3, 100-200:1", "--x")
    assert (mix.ranges, mix.weights, mix.most) == (((8, 8), (100, 200)), (3.0, 1.0), 200)
    dice = random.Random(1)
    drawn = [mix.draw(dice) for _ in range(2000)]
    short = sum(length == 8 for length in drawn) / len(drawn)
    assert 0.7 < short < 0.8
    assert {length for length in drawn if length != 8} <= set(range(100, 201))


@pytest.mark.parametrize("text", ["", "x", "4-", "0", "0-4", "9-4", "4:", "4:0", "4,,5", "-4"])
def test_what_is_no_mix(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--answer '"):
        Lengths.parse(text, "--answer")


def test_arrivals_of_an_open_loop_are_a_poisson_process() -> None:
    load = Load(prompt=FOUR, answer=FOUR, rate=50.0, requests=5000)
    due = [job.due for job in load.jobs()]
    assert due == sorted(due)
    gaps = [b - a for a, b in itertools.pairwise([0.0, *due])]
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    # Exponential gaps: as wide as their mean, and a share of 1/e is longer.
    assert statistics.stdev(gaps) == pytest.approx(mean, rel=0.1)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)


def test_the_end_of_a_plan_is_a_number_or_a_time() -> None:
    by_time = list(Load(prompt=FOUR, answer=FOUR, rate=100.0, duration=2.0).jobs())
    assert 150 < len(by_time) < 250
    assert by_time[-1].due < 2.0
    both = Load(prompt=FOUR, answer=FOUR, rate=100.0, duration=2.0, requests=7)
    assert len(list(both.jobs())) == 7
    closed = Load(prompt=FOUR, answer=FOUR, concurrency=3, requests=7)
    assert [job.due for job in closed.jobs()] == [0.0] * 7


def test_a_seed_is_a_plan() -> None:
    def jobs(seed: int, rate: float) -> list[Job]:
        mix = Lengths.parse("4-400", "--x")
        return list(Load(prompt=mix, answer=mix, rate=rate, requests=20, seed=seed).jobs())

    assert jobs(1, 5.0) == jobs(1, 5.0)
    assert jobs(1, 5.0) != jobs(2, 5.0)
    # The rate moves requests in time and changes nothing else of them.
    assert [job.answer_tokens for job in jobs(1, 5.0)] == [
        job.answer_tokens for job in jobs(1, 500.0)
    ]
    assert len({job.seed for job in jobs(1, 5.0)}) == 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"requests": 1}, "one of --rate"),
        ({"rate": 1.0, "concurrency": 1, "requests": 1}, "one of --rate"),
        ({"rate": 1.0}, "give --requests, --duration or both"),
    ],
)
def test_a_load_needs_a_loop_and_an_end(given: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Load(prompt=FOUR, answer=FOUR, **given)  # pyright: ignore[reportArgumentType]
