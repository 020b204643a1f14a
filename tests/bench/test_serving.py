"""The section on serving, its parts and its numbers; the whole of it on a tiny eager model."""

from pathlib import Path

import pytest

from tests.bench.serving import Added, Found, measure, overtaken, section
from tests.bench.serving_calls import Pace, Stream
from tests.server.tiny_checkpoint import write_checkpoint


def stream(*times: float) -> Stream:
    return Stream(times=list(times), tokens=[1] * len(times))


def found(**changes: object) -> Found:
    direct, remote = Added(messages=4), Added(messages=4, worker_cpu=0.004, client_cpu=0.002)
    for ms in ((10.0, 11.0, 12.0), (20.0, 22.0)):
        direct.add(ms)
        remote.add([value + 0.5 for value in ms])
    fields = {
        "direct": direct,
        "remote": remote,
        "by_grpcio": remote,
        "right": 2,
        "streams": (stream(1.0, 1.5), stream(2.0, 2.1)),
        "seconds": 2.0,
        "paces": (
            Pace(alone=100.0, beside=90.0, refused=400, seconds=2.0),
            Pace(alone=100.0, beside=98.0, refused=400, seconds=2.0),
            Pace(alone=100.0, beside=80.0, refused=400, seconds=2.0),
        ),
        "idle": 0.004,
    }
    return Found(**{**fields, **changes})  # pyright: ignore[reportArgumentType]


def test_numbers_are_differences_of_medians() -> None:
    numbers = section(found()).numbers
    assert numbers["added_first_ms"] == pytest.approx(0.5)
    assert numbers["added_message_ms"] == pytest.approx(0.0)
    assert numbers["pace_beside_refusals"] == pytest.approx(0.9)
    assert numbers["idle_percent"] == pytest.approx(0.4)
    assert (numbers["streams_right"], numbers["overtaken"]) == (2, 0)


def test_the_tables_say_what_was_measured() -> None:
    added, rest = section(found()).tables
    assert added.rows[1][3:] == ("1.00", "0.50")
    rows = {row[0]: row[1] for row in rest.rows}
    assert rows["tokens/s of all"] == "2"
    assert rows["longest silence within a stream, ms"] == "500"
    assert rows["refusals a second"] == "200"


def test_who_was_overtaken() -> None:
    in_order = [stream(1.0), stream(2.0), stream(3.0), stream(4.0)]
    assert overtaken(in_order) == 0
    assert overtaken([stream(3.5), *in_order[1:]]) == 2
    assert overtaken(list(reversed(in_order))) == 3


def test_the_whole_of_it(tmp_path: Path) -> None:
    """Speeds are those of an eager model; that every stream is right is not."""
    measured = measure(
        lambda _: None,
        checkpoint=write_checkpoint(tmp_path / "tiny"),
        compiler="eager",
        log=tmp_path / "log",
        slots=2,
        tokens=8,
        answers=2,
        streams=6,
        rounds=1,
        window=0.1,
        idle=0.1,
    )
    assert measured.right == len(measured.streams) == 6
    assert len(measured.direct.first) == len(measured.remote.first) == 2
    assert measured.direct.messages == measured.remote.messages
    [pace] = measured.paces
    assert pace.refused == 20
    assert section(measured).key == "serving"
