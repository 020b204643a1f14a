"""Failures asked for by name: in allocate, in an engine step, in the sampler, in the detokenizer.

The machine checks that nothing is lost and that others go on as if nothing had happened. Keeps
true: after each test no failure is left armed.
"""

from collections.abc import Iterator

import pytest

from graphs.buffers import ACCEPTED
from runtime import failpoints
from runtime.failpoints import InjectedError
from runtime.request import SamplingParams
from tests.runtime.machine import NARROW, WIDE, Machine, tokens

PARAMS = SamplingParams(max_tokens=30)


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm({})


def failed(machine: Machine) -> dict[str, str]:
    """Messages of the requests that failed."""
    ends = {name: said.end for (name, _), said in machine.said.items()}
    return {name: end.message for name, end in ends.items() if end and end.reason == "failed"}


@pytest.mark.parametrize("shape", [NARROW, WIDE])
@pytest.mark.parametrize("call", [1, 2, 7, 30])
@pytest.mark.parametrize("name", failpoints.ONE_CALL)
def test_a_failure_ends_those_that_took_part_and_no_others(
    name: str, call: int, shape: str
) -> None:
    machine = Machine(shape, slots=3)
    for seed in range(3):
        machine.submit(tokens(62 + seed, seed), PARAMS)
    failpoints.arm({name: call})
    machine.run()
    found = failed(machine)
    assert 1 <= len(found) <= (3 if name == "engine.step" else 1)
    assert set(found.values()) == {f"injected failure: {name}"}
    for seed in range(3):  # what they left in the cache is right
        machine.ask(tokens(62 + seed, seed) + tokens(9), PARAMS)
    assert failed(machine) == found


def test_logits_that_are_not_numbers_fail_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(slots=2)
    for seed in range(2):
        machine.submit(tokens(70, seed), PARAMS)
    for _ in range(5):
        machine.step()
    read = machine.engine._read
    with monkeypatch.context() as patch:

        def not_numbers(*args: object, **more: object) -> object:
            for each in machine.engine._decoders.values():
                each.ints.array[:, : ACCEPTED + 1] = -1
                each.ints.array[:, ACCEPTED] = 0
            return read(*args, **more)  # pyright: ignore[reportArgumentType]

        patch.setattr(machine.engine, "_read", not_numbers)
        machine.step()
    assert set(failed(machine)) == {"0", "1"}
    assert all("NaN" in message for message in failed(machine).values())
    machine.run()
    machine.ask(tokens(70), PARAMS)


def test_a_fault_of_our_own_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so to who steps, and everything can still be ended."""
    machine = Machine()
    machine.submit(tokens(70), PARAMS)
    while machine.scheduler.load["running"] == 0:
        machine.step()

    def broken(*args: object, **more: object) -> None:
        raise AssertionError("ours")

    monkeypatch.setattr(machine.engine, "decode", broken)
    with pytest.raises(AssertionError, match="ours"):
        machine.scheduler.step()
    for output in machine.scheduler.fail_all("ours"):
        assert output.end is None or output.end.message == "ours"
    machine.check()
    assert machine.scheduler.idle
    assert machine.memory.cache.full.used == 0


def test_names_and_counts_are_read_strictly() -> None:
    assert failpoints.parse("engine.step=3,allocate=1") == {"engine.step": 3, "allocate": 1}
    assert failpoints.parse("") == {}
    for wrong in ("engine=1", "sampler", "sampler=0", "sampler=x", "sampler=-1"):
        with pytest.raises(ValueError, match="is not NAME=CALL"):
            failpoints.parse(wrong)


def test_a_point_fails_once_at_its_call() -> None:
    failpoints.arm({"sampler": 2})
    failpoints.reach("sampler")
    failpoints.reach("allocate")
    with pytest.raises(InjectedError, match="injected failure: sampler"):
        failpoints.reach("sampler")
    failpoints.reach("sampler")
    failpoints.arm({"sampler": 1, "allocate": 1})
    failpoints.arm({})
    failpoints.reach("sampler")
