"""Who runs Python while an engine computes, and who in between: how long others wait for a turn."""

import sys
import time
from collections.abc import Callable, Iterator

import pytest

from runtime.answer import Output
from runtime.capture import Runner
from runtime.service import Service
from runtime.turns import SHORT, WHOLE, aside
from tests.runtime.served import request, scheduler


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_turns_are_short_aside_and_whole_again_whatever_happens() -> None:
    found = list[float]()

    def fail() -> None:
        with aside():
            found.append(sys.getswitchinterval())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert found == pytest.approx([SHORT])
    assert sys.getswitchinterval() == pytest.approx(WHOLE)


def test_others_have_python_while_an_engine_computes_and_wait_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computing, between, ended = list[float](), list[float](), list[Output]()
    run = Runner.run

    def watched(self: Runner) -> None:
        computing.append(sys.getswitchinterval())
        run(self)

    def deliver(output: Output) -> None:
        between.append(sys.getswitchinterval())
        if output.end is not None:
            ended.append(output)

    with Service(scheduler) as service:
        monkeypatch.setattr(Runner, "run", watched)
        service.send(request("a"), deliver)
        service.send(request("b", 1), deliver)
        wait(lambda: len(ended) == 2)
        # It has nothing to do: whoever gives it something is not to hold it up.
        wait(lambda: sys.getswitchinterval() < WHOLE / 2)
    assert computing == pytest.approx([SHORT] * len(computing))
    assert between == pytest.approx([WHOLE] * len(between))
    assert len(computing) > 4
    assert len(between) > 4
