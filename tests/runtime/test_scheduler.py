"""The queue, its ends and its turns: refusals, cancels, deadlines, priorities, who is next.

Runs on a tiny model through the machine, which checks what is said and that nothing is lost. Keeps
true: time is the machine's own clock, one second a step.
"""

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.answer import PATIENCE
from runtime.pools import PoolSizes
from runtime.request import SamplingParams
from runtime.scheduler import Limits, QueueFullError
from tests.runtime.machine import CONTEXT, NARROW, Machine, tokens

LONG = SamplingParams(max_tokens=200)
MIDDLE = SamplingParams(max_tokens=80)
SHORT = SamplingParams(max_tokens=2)


def reason(machine: Machine, name: str, index: int = 0) -> str:
    end = machine.said[name, index].end
    assert end is not None
    return end.reason


def served(machine: Machine, steps: int) -> dict[str, list[int]]:
    """At which of the next steps each request said something."""
    at: dict[str, list[int]] = {}
    for step in range(steps):
        for output in machine.step():
            if output.step:
                at.setdefault(output.request_id, []).append(step)
    return at


def test_what_can_never_fit_is_refused_at_once_with_numbers() -> None:
    machine = Machine(pools=PoolSizes(full=4, sliding=9))
    machine.submit(tokens(52), LONG)
    # The last windows reach past it.
    with pytest.raises(ValueError, match="253 positions need 5 full blocks, and there are 4"):
        machine.submit(tokens(53), LONG)
    with pytest.raises(ValueError, match=f"exceed the context of {CONTEXT}"):
        machine.submit(tokens(CONTEXT - 199), LONG)
    few = Machine(pools=PoolSizes(full=9, sliding=2))
    with pytest.raises(ValueError, match=r"need \d sliding blocks, and there are 2"):
        few.submit(tokens(200), LONG)
    few.submit(tokens(20), SamplingParams(max_tokens=90))
    for each in (machine, few):
        each.run()


def test_a_full_queue_refuses_and_takes_again() -> None:
    machine = Machine(slots=1, limits=Limits(queued=2))
    machine.submit(tokens(5), SHORT)
    machine.step()
    for _ in range(2):
        machine.submit(tokens(5), SHORT)
    with pytest.raises(QueueFullError, match="2 answers wait, 2 may"):
        machine.submit(tokens(5), SHORT)
    with pytest.raises(ValueError, match="n = 3: at most 2 answers may wait"):
        machine.submit(tokens(5), SamplingParams(n=3))
    machine.run()
    machine.submit(tokens(5), SamplingParams(n=2, max_tokens=2))
    machine.run()


def test_an_id_is_used_once_at_a_time() -> None:
    machine = Machine()
    machine.submit(tokens(5), SHORT)
    with pytest.raises(ValueError, match="request id '0' is in use"):
        machine.scheduler.submit(machine.requests["0"])
    machine.run()


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("why", ["cancelled", "deadline"])
def test_an_end_in_any_state_gives_everything_back_within_a_step(steps: int, why: str) -> None:
    """Steps 0: queued; 1 to 3: its prompt is loading; later: running."""
    machine = Machine(slots=2, limits=Limits(chunk_rows=64))
    other = machine.submit(tokens(9, 3), SamplingParams(max_tokens=30))
    machine.step()  # its first token
    machine.step()
    deadline = machine.now + steps if why == "deadline" else None
    name = machine.submit(tokens(200), LONG, deadline=deadline)
    for _ in range(steps):
        machine.step()
    before = machine.scheduler.load
    state = "queued" if steps == 0 else "loading" if steps < 4 else "running"
    assert before[state] == 1 + (state == "running")
    if why == "cancelled":
        assert machine.scheduler.cancel(name)
    machine.step()
    assert reason(machine, name) == why
    assert [answer.request.id for answer in machine.live] == [other]
    assert not machine.scheduler.cancel(name)  # late: nothing happens
    machine.run()
    assert reason(machine, other) == "length"


def test_a_cancel_after_the_last_token_or_of_nobody_does_nothing() -> None:
    machine = Machine()
    name = machine.submit(tokens(5), SamplingParams(max_tokens=1))
    assert any(output.end for output in machine.step())
    assert not machine.scheduler.cancel(name)
    assert not machine.scheduler.cancel("nobody")
    assert machine.scheduler.idle
    assert machine.step() == []


@pytest.mark.parametrize("over", [False, True])
def test_a_cancel_ends_all_answers_that_are_not_over(over: bool) -> None:
    machine = Machine(slots=2)
    name = machine.submit(tokens(5), SamplingParams(n=3, max_tokens=60))
    for _ in range(4):
        machine.step()
    while machine.scheduler.load["queued"] == over:  # the third has a place once one is over
        machine.step()
    machine.scheduler.cancel(name)
    machine.run()
    ends = [reason(machine, name, index) for index in range(3)]
    assert set(ends) == ({"cancelled", "length"} if over else {"cancelled"})


def test_the_end_of_everything() -> None:
    machine = Machine(slots=1)
    for seed in range(3):
        machine.submit(tokens(9, seed), MIDDLE)
    for _ in range(4):
        machine.step()
    outputs = machine.scheduler.fail_all("the engine is lost")
    found = {(o.request_id, o.end.reason, o.end.message) for o in outputs if o.end}
    assert found == {(str(name), "failed", "the engine is lost") for name in range(3)}
    assert machine.scheduler.idle
    machine.check()


def test_who_matters_more_is_admitted_first() -> None:
    machine = Machine(slots=1)
    for priority in (0, 2, 1, 1, -1):
        machine.submit(tokens(5, priority), SHORT, priority=priority)
    first = {name: at[0] for name, at in served(machine, 20).items()}
    assert sorted(first, key=lambda name: first[name]) == ["4", "0", "2", "3", "1"]


def test_a_later_answer_gives_its_blocks_to_an_earlier_one() -> None:
    machine = Machine(slots=3, pools=PoolSizes(full=7, sliding=14))
    for seed, priority in enumerate((1, 0, 0)):
        machine.submit(tokens(60, seed), SamplingParams(max_tokens=150), priority=priority)
    machine.run()
    ends = [machine.said[str(name), 0].end for name in range(3)]
    preemptions = [end.numbers.preemptions for end in ends if end]
    assert preemptions[1] == 0
    assert preemptions[0] > 0


def test_nobody_overtakes_one_that_waits_for_blocks() -> None:
    machine = Machine(slots=3, pools=PoolSizes(full=5, sliding=12))
    machine.submit(tokens(120), SamplingParams(max_tokens=60))
    machine.step()
    machine.submit(tokens(250, 1), SHORT)
    machine.submit(tokens(5, 2), SHORT)
    while machine.said["0", 0].end is None:
        assert machine.scheduler.load["queued"] == 2
        machine.step()
    machine.run()


def test_one_that_waits_for_blocks_is_looked_up_when_some_were_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not each step: the hashes of a long prompt take longer than one."""
    machine = Machine(slots=3, pools=PoolSizes(full=5, sliding=12))
    machine.submit(tokens(120), SamplingParams(max_tokens=60))
    machine.step()
    memory, opened = machine.scheduler.seats.memory, list[int]()
    real = memory.open

    def counted(slot: int, *args: Any, **named: Any) -> int:
        opened.append(slot)
        return real(slot, *args, **named)

    monkeypatch.setattr(memory, "open", counted)
    machine.submit(tokens(250, 1), SHORT)
    while machine.said["0", 0].end is None:
        machine.step()
    assert len(opened) == 1
    machine.run()
    assert len(opened) == 2


def test_running_answers_take_turns_when_a_batch_does_not_hold_them() -> None:
    machine = Machine(slots=6)
    for seed in range(6):
        machine.submit(tokens(5, seed), MIDDLE)
    served(machine, 10)
    for at in served(machine, 30).values():
        assert max(later - sooner for sooner, later in itertools.pairwise(at)) <= 2


def test_nobody_starves_beside_those_that_matter_more() -> None:
    machine = Machine(slots=6)
    for seed in range(6):
        machine.submit(tokens(5, seed), MIDDLE, priority=int(seed > 3))
    served(machine, 10)
    at = served(machine, 40)
    assert len(at) == 6
    gaps = {name: max(b - a for a, b in itertools.pairwise(t)) for name, t in at.items()}
    assert max(gaps.values()) <= PATIENCE + 1
    assert gaps["0"] <= 2 < gaps["5"]


def test_a_prompt_that_matters_less_is_loaded_some_day() -> None:
    machine = Machine(slots=2, limits=Limits(chunk_rows=16))
    low = machine.submit(tokens(40), SHORT, priority=1)
    for seed in range(60):
        machine.submit(tokens(30, seed), SamplingParams(max_tokens=1))
        machine.step()
        if machine.said[low, 0].end:
            break
    assert machine.said[low, 0].end is not None
    machine.run()


@pytest.mark.parametrize("rows", [1, 16, 40, 64, 80])
def test_running_answers_wait_for_so_many_rows_at_most(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of however many prompts; one chunk in any case."""
    machine = Machine(slots=4, limits=Limits(chunk_rows=rows))
    stream = machine.submit(tokens(5), LONG)
    machine.step()
    machine.step()
    chunks: list[int] = []
    load = machine.engine.prefill_chunk

    def counted(prompt: list[int], start: int, size: int, *more: Any, **named: Any) -> object:
        chunks.append(size)
        return load(prompt, start, size, *more, **named)

    monkeypatch.setattr(machine.engine, "prefill_chunk", counted)
    for seed in range(3):
        machine.submit(tokens(240, seed), SamplingParams(max_tokens=9))
    loaded, before, mute = set[int](), 0, 0
    while machine.scheduler.load["loading"] or not loaded:
        outputs = machine.step()
        if any(output.request_id == stream and output.step for output in outputs):
            loaded.add(sum(chunks[before:]))
            before, mute = len(chunks), 0
        else:
            mute += 1
        assert mute < 2  # only where somebody's first token came
    assert max(loaded) == max(16, rows // 16 * 16)


def test_a_first_token_does_not_wait_for_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and then the batch is decoded before anything else is loaded."""
    machine = Machine(slots=3, limits=Limits(chunk_rows=16))
    stream = machine.submit(tokens(5), LONG)
    machine.step()
    machine.step()
    calls: list[str] = []

    def noting(name: str) -> Callable[..., object]:
        call = getattr(machine.engine, name)

        def noted(*given: Any, **named: Any) -> object:
            calls.append(name)
            return call(*given, **named)

        return noted

    for name in ("prefill_chunk", "decode"):
        monkeypatch.setattr(machine.engine, name, noting(name))
    one, other = (machine.submit(tokens(9, seed), LONG) for seed in (3, 4))
    told = [{output.request_id for output in machine.step()} for _ in range(3)]
    assert told == [{one}, {stream, one}, {other}]
    assert calls == ["prefill_chunk", "decode", "prefill_chunk"]
    machine.run()


def test_memory_does_not_grow_with_requests() -> None:
    machine = Machine(NARROW, pools=PoolSizes(full=6, sliding=8))
    counts: list[tuple[int, int]] = []
    for number in range(150):
        machine.submit(tokens(3 + number % 3, number % 5), SHORT)
        machine.submit(tokens(70, number % 7), SamplingParams(max_tokens=1))
        machine.run()
        machine.said.clear()
        if number % 75 == 74:
            gc.collect()
            tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
            counts.append((tensors, len(machine.memory.cache)))
    assert counts[0] == counts[1]
    assert machine.scheduler.load == {"queued": 0, "loading": 0, "running": 0, "over": 0}
