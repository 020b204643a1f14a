"""What fails in the engine's thread: one call, everything, and what fails while it fails."""

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from runtime import failpoints, streams
from runtime.answer import Answer, Output, Request
from runtime.scheduler import Scheduler
from runtime.service import Service, ServiceClosedError, ServiceFailedError, Submission
from runtime.streams import AsyncStream
from tests.runtime.served import alone, request, scheduler, told
from tests.runtime.test_service import LONG, check_ends, check_whole


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm({})


def check_failed(outputs: list[Output], message: str, answers: int = 1) -> None:
    check_ends(outputs, answers)
    for output in outputs:
        if output.end is not None:
            assert output.end.reason == "failed"
            assert message in output.end.message


@pytest.mark.parametrize("name", failpoints.ONE_CALL)
def test_a_failure_of_one_call_is_not_a_fault(name: str) -> None:
    service = Service(scheduler)
    failpoints.arm({name: 3})
    streams = [service.submit(request(seed, seed)) for seed in range(3)]
    failed = 0
    for seed, stream in enumerate(streams):
        outputs = list(stream)
        check_ends(outputs)
        assert outputs[-1].end is not None
        if outputs[-1].end.reason == "failed":
            failed += 1
            assert f"injected failure: {name}" in outputs[-1].end.message
        else:
            assert told(outputs) == alone(seed)[0]
    assert failed >= 1
    assert service.fault is None
    assert told(service.submit(request("after", 1))) == alone(1)[0]
    service.close()
    check_whole(service)


def break_step(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    """The step after so many raises what nobody expects, half way."""
    step, count = Scheduler._decode, 0

    def broken(self: Scheduler) -> None:
        nonlocal count
        count += 1
        step(self)
        if count > turns:
            raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(Scheduler, "_decode", broken)


def test_a_fault_ends_all_and_refuses_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    break_step(monkeypatch, 5)
    service = Service(scheduler)
    streams = [service.submit(request(n, n, n=2, max_tokens=LONG)) for n in range(4)]
    message = "the engine failed: RuntimeError: CUDA error: an illegal memory access"
    everything = [list(stream) for stream in streams]
    for outputs in everything:
        check_failed(outputs, message, answers=2)
    assert any(told(outputs) for outputs in everything), "what was made before is told"
    with pytest.raises(ServiceFailedError, match="an illegal memory access") as refused:
        service.submit(request("late"))
    assert refused.value.__cause__ is service.fault
    service.cancel("late")
    service.close()


def test_what_was_on_its_way_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was sent before the fault and not yet looked at."""
    service = Service(scheduler)
    stream = service.submit(request("a", max_tokens=LONG))
    late: list[Submission] = []

    def broken(_: Scheduler) -> list[Output]:
        late.append(service.send(request("b"), lambda _: None))
        raise MemoryError("no more")

    monkeypatch.setattr(Scheduler, "step", broken)
    check_failed(list(stream), "the engine failed: MemoryError: no more")
    service.close()
    with pytest.raises(ServiceFailedError, match="MemoryError: no more"):
        late[0].admitted.result()


def test_ends_come_even_where_the_scheduler_cannot_end(monkeypatch: pytest.MonkeyPatch) -> None:
    break_step(monkeypatch, 3)

    def broken(*_: object) -> list[Output]:
        raise AssertionError("a slot is lost")

    monkeypatch.setattr(Scheduler, "fail_all", broken)
    service = Service(scheduler)
    stream = service.submit(request("a", n=3, max_tokens=LONG))
    check_failed(list(stream), "illegal memory access", answers=3)
    service.close()
    assert service.fault is not None
    assert "a slot is lost" in service.fault.__notes__[0]


def test_an_end_that_a_fault_swallowed_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler has ended the answer, and then fails to say so."""

    def broken(*_: object) -> Output:
        raise RuntimeError("no logprobs")

    monkeypatch.setattr(Answer, "output", broken)
    service = Service(scheduler)
    outputs = list(service.submit(request("a", max_tokens=1)))
    check_failed(outputs, "RuntimeError: no logprobs")
    service.close()


class Kept:
    """An observer that keeps how answers ended."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def watch(self, scheduler: Scheduler) -> None: ...

    def seen(self, outputs: Sequence[Output]) -> None:
        self.reasons += [output.end.reason for output in outputs if output.end is not None]


class Careless:
    """An observer that fails."""

    def watch(self, scheduler: Scheduler) -> None: ...

    def seen(self, outputs: Sequence[Output]) -> None:
        raise ZeroDivisionError("of the observer")


def test_a_fault_of_the_observer_is_one_too() -> None:
    service = Service(scheduler, observer=Careless())
    check_failed(list(service.submit(request("a", n=2))), "of the observer", answers=2)
    service.close()


def test_streams_of_an_event_loop() -> None:
    async def read(service: Service, seed: int) -> list[int]:
        async with await AsyncStream.open(service, request(seed, seed)) as stream:
            return told([output async for output in stream])

    async def main() -> None:
        assert await asyncio.gather(*(read(service, seed) for seed in range(4))) == [
            alone(seed)[0] for seed in range(4)
        ]
        with pytest.raises(ValueError, match="positions exceed"):
            await anext(await AsyncStream.open(service, request("a", max_tokens=5000)))

    service = Service(scheduler)
    asyncio.run(main())
    service.close()
    check_whole(service)


def test_a_long_prompt_is_checked_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = list[threading.Thread]()
    service = Service(scheduler)
    prepare = service.prepare

    def noted(request_: Request) -> list[Answer] | Exception:
        checked.append(threading.current_thread())
        return prepare(request_)

    async def main() -> None:
        for limit in (streams.SHORT_PROMPT, 1):
            monkeypatch.setattr(streams, "SHORT_PROMPT", limit)
            async with await AsyncStream.open(service, request(str(limit))) as stream:
                assert told([output async for output in stream]) == alone(0)[0]

    monkeypatch.setattr(service, "prepare", noted)
    asyncio.run(main())
    service.close()
    short, long = checked
    assert short is threading.current_thread() is not long


def test_a_cancelled_task_frees_the_slot() -> None:
    """While it reads, and while it waits to be admitted."""

    async def read(name: str) -> None:
        async with await AsyncStream.open(service, request(name, max_tokens=LONG)) as stream:
            async for _ in stream:
                started.set()

    async def main() -> None:
        reading = asyncio.create_task(read("a"))
        await started.wait()
        waiting = asyncio.create_task(read("b"))
        await asyncio.sleep(0)
        for task in (reading, waiting):
            task.cancel()
        done = await asyncio.gather(reading, waiting, return_exceptions=True)
        assert [type(each) for each in done] == [asyncio.CancelledError] * 2

    started = asyncio.Event()
    service = Service(scheduler)
    asyncio.run(main())
    assert told(service.submit(request("c", 1))) == alone(1)[0]
    service.close()
    assert service.fault is None
    check_whole(service)


def test_a_task_cancelled_when_it_is_just_admitted_frees_the_slot() -> None:
    async def read() -> None:
        async with await AsyncStream.open(service, request("a", max_tokens=LONG)) as stream:
            await anext(stream)

    async def main() -> None:
        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        admitted = threading.Event()
        service._post(admitted.set)
        admitted.wait()  # the loop has heard nothing of it yet
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        while not kept.reasons:  # a loop that is closed would cancel it too
            await asyncio.sleep(0.001)

    kept = Kept()
    service = Service(scheduler, observer=kept)
    asyncio.run(main())
    service.close()
    assert kept.reasons == ["cancelled"]


def test_a_loop_that_is_gone_cancels_its_requests() -> None:
    async def main() -> None:
        await AsyncStream.open(service, request("a", max_tokens=LONG))

    kept = Kept()
    service = Service(scheduler, observer=kept)
    asyncio.run(main())
    service.close()  # returns soon: nothing runs to its end for nobody
    assert service.fault is None
    assert kept.reasons == ["cancelled"]
    with pytest.raises(ServiceClosedError):
        service.submit(request("b"))
    check_whole(service)


def test_who_falls_too_far_behind_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with await AsyncStream.open(service, request("a", max_tokens=LONG)) as stream:
            while not kept.reasons:
                await asyncio.sleep(0.001)
            outputs = [output async for output in stream]
            assert stream.overrun
            assert len(outputs) > 4
            check_ends(outputs)

    monkeypatch.setattr(streams, "MOST_KEPT", 4)
    kept = Kept()
    service = Service(scheduler, observer=kept)
    asyncio.run(main())
    service.close()
    assert kept.reasons == ["cancelled"]
    check_whole(service)
