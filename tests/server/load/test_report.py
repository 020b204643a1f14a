"""Percentiles, rates and goodput from outcomes whose numbers are known; plots are written."""

import itertools
from pathlib import Path

import pytest

from server.load.plots import _distribution, write_plots
from server.load.report import Goodput, Spread, report
from server.load.run import Outcome


def outcome(index: int, due: float, *times: float, status: str = "OK") -> Outcome:
    """Messages of two tokens, the first one of one."""
    return Outcome(
        index=index,
        due=due,
        sent=due + 0.001,
        times=[due + time for time in times],
        tokens=[1, *[2] * (len(times) - 1)] if times else [],
        ended=due + (times[-1] if times else 0.0),
        status=status,
        prompt_tokens=10,
        steps=max(0, len(times) - 1),
    )


TWO = (outcome(0, 1.0, 0.1, 0.12, 0.15), outcome(1, 2.0, 0.3))
REFUSED = outcome(2, 3.0, status="RESOURCE_EXHAUSTED")
CUT = outcome(3, 3.5, 0.1, 0.2, status="INTERNAL")


def test_times_count_from_when_a_request_was_due() -> None:
    found = report(TWO, None)
    assert found.first is not None
    assert found.first.points[50] == pytest.approx(200)
    assert found.first.most == pytest.approx(300)
    assert found.late is not None
    assert found.late.most == pytest.approx(1)
    assert found.total is not None
    assert found.total.mean == pytest.approx((150 + 300) / 2)


def test_gaps_are_of_messages_and_the_time_of_a_token_is_a_mean() -> None:
    found = report(TWO, None)
    assert found.between is not None
    assert (found.between.count, found.between.mean) == (2, pytest.approx(25))
    assert found.token is not None
    assert (found.token.count, found.token.mean) == (1, pytest.approx(50 / 4))


def test_rates_and_steps() -> None:
    found = report(TWO, None)
    assert found.seconds == pytest.approx(2.3)
    assert found.tokens == 6
    assert found.per_second(found.tokens) == pytest.approx(6 / 2.3)
    assert found.tokens_a_step == 2
    assert found.tokens_a_message == pytest.approx(6 / 4)


def test_failed_requests_are_counted_and_not_timed() -> None:
    found = report([*TWO, REFUSED, CUT], None)
    assert found.statuses == {"OK": 2, "RESOURCE_EXHAUSTED": 1, "INTERNAL": 1}
    assert (found.requests, found.answered, found.tokens) == (4, 2, 6)
    assert found.first is not None
    assert found.first.count == 2


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ("ttft:250", 1),
        ("ttft:301", 2),
        ("ttft:301,between:20", 1),
        ("between:26", 2),
        ("total:151", 1),
        ("total:10000", 2),
    ],
)
def test_a_good_request_is_answered_within_every_limit(limits: str, good: int) -> None:
    found = report([*TWO, REFUSED, CUT], Goodput.parse(limits))
    assert found.good == good
    value = found.to_json()["goodput"]
    assert value["share"] == good / 4


@pytest.mark.parametrize("text", ["", "ttft", "ttft:", "ttft:x", "speed:4", "ttft:0", "ttft:nan"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError, match="--goodput"):
        Goodput.parse(text)


def test_nothing_answered_is_no_number() -> None:
    found = report([REFUSED], Goodput.parse("ttft:1"))
    assert found.first is None
    assert found.to_json()["time_to_first_token_ms"] is None
    assert found.tokens_a_step == 0
    empty = report([], None).to_json()
    assert (empty["requests"], empty["tokens_per_second"]) == (0, 0)


def test_percentiles() -> None:
    found = Spread.of([float(value) for value in range(101)])
    assert found is not None
    assert found.points == {50: 50, 90: 90, 95: 95, 99: 99}


@pytest.mark.parametrize("outcomes", [[*TWO, REFUSED, CUT], [REFUSED], []])
def test_plots_of_whatever_there_is(outcomes: list[Outcome], tmp_path: Path) -> None:
    for path in write_plots(outcomes, tmp_path / "plots"):
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("most", [3.0, 40.0, 60.0, 2500.0, 60_000.0])
def test_numbers_on_an_axis_do_not_meet(most: float) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6))
    _distribution(panels[0], [0.05 * most, most, 1.3 * most])
    _distribution(panels[1], [1.0, most, 1.3 * most])
    figure.canvas.draw()
    for axes in panels[:2]:
        least, end = axes.get_xlim()
        ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        boxes = [label.get_window_extent() for at, label in ticks if least <= at <= end]
        assert boxes
        assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))
        assert not any("e+" in text.get_text() for text in axes.get_legend().get_texts())
    pyplot.close(figure)
