"""Which calls leave a processor to others, on an engine that says what it runs."""

import os

import pytest

from runtime import processors
from runtime.exchange import Turn
from runtime.processors import Processors
from runtime.request import SamplingParams
from tests.runtime.machine import Machine, tokens


def used(monkeypatch: pytest.MonkeyPatch, *, spare: int, machine_has: int) -> list[int]:
    """The threads that the kernels are given while two prompts are loaded, one answer runs alone,
    then two, then one, which catches up and runs again, and then a prompt is loaded."""
    given: list[int] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(machine_has)))
    monkeypatch.setattr(processors, "set_threads", given.append)
    engine = Machine(slots=2).engine
    engine._processors = Processors(spare=spare)
    turns = [Turn(slot=slot, position=5, token=1) for slot in range(2)]
    for slot in range(2):
        engine.prefill(tokens(5), slot, SamplingParams())
    for some in (turns[:1], turns[:1], turns, turns[:1]):
        engine.decode(some)
    engine.observe(0, 5, 1)
    engine.decode(turns[:1])
    engine.prefill(tokens(5), 0, SamplingParams())
    return given


def test_a_step_of_one_answer_and_what_follows_a_prompt_leave_some_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert used(monkeypatch, spare=1, machine_has=4) == [3, 4, 3, 4, 3, 4, 3, 4, 3]


def test_one_is_always_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert used(monkeypatch, spare=9, machine_has=2) == [1, 2, 1, 2, 1, 2, 1, 2, 1]


@pytest.mark.parametrize(("spare", "machine_has"), [(0, 4), (1, 1)])
def test_there_may_be_none_to_leave(
    monkeypatch: pytest.MonkeyPatch, spare: int, machine_has: int
) -> None:
    assert used(monkeypatch, spare=spare, machine_has=machine_has) == []
