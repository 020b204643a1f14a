"""Requests from many threads through the engine's one: order, ends, cancellation, closing."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime.answer import Output, Request
from runtime.request import SamplingParams
from runtime.scheduler import QueueFullError, Scheduler
from runtime.service import Service, ServiceClosedError
from tests.runtime.served import alone, params, request, scheduler, told

LONG = 400  # tokens: what is not cancelled takes long, but ends


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(scheduler)
    yield made
    made.close(grace=0)


def of(made: Service) -> Scheduler:
    return made._scheduler


def check_whole(made: Service) -> None:
    """After it has closed: every slot and block is back."""
    of(made).seats.memory.check()
    assert of(made).seats.free == 3
    assert of(made).idle
    assert not made._live


def check_ends(outputs: list[Output], answers: int = 1) -> None:
    """Each answer ends once, and nothing of it comes after."""
    for index in range(answers):
        own = [output for output in outputs if output.index == index]
        assert [output.end is not None for output in own] == [False] * (len(own) - 1) + [True]


def test_an_answer_is_that_of_the_request_alone(service: Service) -> None:
    outputs = list(service.submit(request("a", 1)))
    assert told(outputs) == alone(1)[0]
    check_ends(outputs)
    assert outputs[-1].end is not None
    assert outputs[-1].end.reason == "length"


def test_all_answers_of_a_request_come(service: Service) -> None:
    outputs = list(service.submit(request("a", 2, n=3)))
    check_ends(outputs, answers=3)
    assert [told(outputs, index) for index in range(3)] == alone(2, 3)


def test_the_engine_lives_on_its_own_thread() -> None:
    """Fault J6: it is made where it runs."""
    made_on: list[threading.Thread] = []

    def factory() -> Scheduler:
        made_on.append(threading.current_thread())
        return scheduler()

    with Service(factory) as service:
        on: list[threading.Thread] = []
        service.send(request("a"), lambda _: on.append(threading.current_thread()))
    assert {*made_on, *on} == {service._thread}
    assert service._thread is not threading.current_thread()


def test_what_the_factory_raises_is_the_callers() -> None:
    def factory() -> Scheduler:
        raise ValueError("no such checkpoint")

    with pytest.raises(ValueError, match="no such checkpoint"):
        Service(factory)


def test_two_consumers_read_at_once(service: Service) -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(lambda s=s: list(service.submit(request(s, s)))) for s in (0, 3)]
        for seed, job in zip((0, 3), jobs, strict=True):
            assert told(job.result()) == alone(seed)[0]


def test_who_does_not_read_stops_nobody(service: Service) -> None:
    idle = service.submit(request("idle", 0))
    assert told(service.submit(request("b", 1))) == alone(1)[0]
    outputs = list(idle)  # all that it did not read is there
    assert told(outputs) == alone(0)[0]
    check_ends(outputs)


def test_a_refused_request_raises_for_who_submitted_it(service: Service) -> None:
    first = service.submit(request("a", max_tokens=LONG))
    with pytest.raises(ValueError, match="'a' is in use"):
        service.submit(request("a"))
    with pytest.raises(ValueError, match="outside 0"):
        service.submit(Request(id="b", prompt=(12,), params=SamplingParams()))
    with pytest.raises(ValueError, match="positions exceed"):
        service.submit(request("c", max_tokens=5000))
    # The refused one with the same id has not taken the first one with it.
    next(first)
    first.cancel()
    check_ends(list(first))


def test_a_full_queue_refuses() -> None:
    with Service(lambda: scheduler(queued=2)) as service:
        gate = threading.Event()
        service._post(gate.wait)  # both come between two steps
        first, second = (service.send(request(name, n=2), lambda _: None) for name in "ab")
        gate.set()
        first.admitted.result()
        with pytest.raises(QueueFullError, match="2 may"):
            second.admitted.result()
        first.cancel()
        assert told(service.submit(request("c", 1))) == alone(1)[0]


def test_that_there_is_no_place_is_known_before_a_request_is_made() -> None:
    with Service(lambda: scheduler(queued=2)) as service:
        streams = []
        for name in "abc":
            streams.append(service.submit(request(name, max_tokens=LONG)))
            next(streams[-1])
        service.check_room()  # three run, and the queue is empty
        streams += [service.submit(request(name, max_tokens=LONG)) for name in "de"]
        with pytest.raises(QueueFullError, match="2 answers wait, 2 may"):
            service.check_room()
        for stream in streams:
            stream.cancel()


def test_cancel_ends_it_soon_and_again_does_nothing(service: Service) -> None:
    """Faults J1, J2: nobody decodes for one that left, and a second cancel is no error."""
    stream = service.submit(request("a", 1, max_tokens=LONG))
    next(stream)
    service.cancel("a")
    service.cancel("a")
    rest = list(stream)
    check_ends(rest)
    assert rest[-1].end is not None
    assert rest[-1].end.reason == "cancelled"
    service.cancel("a")
    service.cancel("nobody")
    stream.cancel()
    assert told(service.submit(request("a", 1))) == alone(1)[0]


def test_an_id_is_in_use_until_its_end_was_told(service: Service) -> None:
    """Also where the scheduler has ended it, and the output is not out."""
    gate = threading.Event()
    old = service.submit(request("a", max_tokens=LONG))
    service._post(gate.wait)
    service.cancel("a")
    early = service.send(request("a", 1), lambda _: None)
    gate.set()
    with pytest.raises(ValueError, match="'a' is in use"):
        early.admitted.result()
    check_ends(list(old))
    new = service.submit(request("a", 1))
    old._submission.cancel()
    assert told(new) == alone(1)[0]


def test_leaving_a_stream_cancels_it(service: Service) -> None:
    with service.submit(request("a", max_tokens=LONG)) as stream:
        next(stream)
    rest = list(stream)
    assert rest[-1].end is not None
    assert rest[-1].end.reason == "cancelled"


def test_a_listener_that_raises_is_cancelled_alone(service: Service) -> None:
    got: list[Output] = []

    def deliver(output: Output) -> None:
        got.append(output)
        raise RuntimeError("the loop is closed")

    service.send(request("a", max_tokens=LONG), deliver)
    assert told(service.submit(request("b", 1))) == alone(1)[0]
    service.close()
    assert len(got) == 1
    assert service.fault is None
    check_whole(service)


@pytest.mark.parametrize("round_", range(3))
def test_random_cancels_from_many_threads(round_: int) -> None:
    """Whatever is cancelled when: what came is a beginning of the right answer, with one end."""
    service = Service(scheduler)

    def use(seed: int) -> None:
        draw = random.Random(100 * round_ + seed)
        for turn in range(4):
            n = draw.choice((1, 1, 2))
            name = f"{seed}.{turn}"
            stream = service.submit(request(name, seed, n=n))
            cancels = draw.random() < 0.6
            left = draw.randrange(12) if cancels else -1
            outputs: list[Output] = []
            if left == 0:
                service.cancel(name)
            for output in stream:
                outputs.append(output)
                if len(outputs) == left:
                    draw.choice((stream.cancel, lambda name=name: service.cancel(name)))()
                if draw.random() < 0.1:
                    time.sleep(0.002)
            check_ends(outputs, answers=n)
            for index, whole in enumerate(alone(seed, n)):
                got = told(outputs, index)
                assert got == whole[: len(got)]
                assert cancels or got == whole

    with ThreadPoolExecutor(5) as pool:
        for job in [pool.submit(use, seed) for seed in range(5)]:
            job.result()
    service.close()
    check_whole(service)


def test_close_lets_answers_finish(service: Service) -> None:
    streams = [service.submit(request(seed, seed)) for seed in range(4)]
    service.close()
    for seed, stream in enumerate(streams):
        assert told(stream) == alone(seed)[0]
    with pytest.raises(ServiceClosedError, match="closed"):
        service.submit(request("late"))
    service.cancel("late")
    service.close()
    check_whole(service)


def test_close_cancels_after_its_grace(service: Service) -> None:
    streams = [service.submit(request(seed, seed, max_tokens=LONG)) for seed in range(5)]
    service.close(grace=0.01)
    for stream in streams:
        outputs = list(stream)
        check_ends(outputs)
        assert outputs[-1].end is not None
        assert outputs[-1].end.reason == "cancelled"
    check_whole(service)


def test_a_second_close_is_more_impatient(service: Service) -> None:
    stream = service.submit(request("a", max_tokens=LONG))
    first = threading.Thread(target=service.close)
    first.start()
    next(stream)
    service.close(grace=0)
    first.join()
    last = list(stream)[-1]
    assert last.end is not None
    assert last.end.reason == "cancelled"


def test_as_a_context_manager_it_finishes_or_cancels() -> None:
    with Service(scheduler) as service:
        stream = service.submit(request("a", 1))
    assert told(stream) == alone(1)[0]
    with pytest.raises(KeyError), Service(scheduler) as service:  # noqa: PT012
        stream = service.submit(request("a", 1, max_tokens=LONG))
        raise KeyError("of the user's own")
    last = list(stream)[-1]
    assert last.end is not None
    assert last.end.reason == "cancelled"


def test_an_idle_service_sleeps(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    list(service.submit(request("a")))
    looks = 0

    def idle(_: Scheduler) -> bool:
        nonlocal looks
        looks += 1
        return True

    monkeypatch.setattr(Scheduler, "idle", property(idle))
    time.sleep(0.1)
    assert looks <= 2
    assert service._thread.is_alive()


def test_a_deadline_ends_an_answer(service: Service) -> None:
    late = Request(
        id="a", prompt=(1,), params=params(0, max_tokens=LONG), deadline=time.monotonic()
    )
    [only] = service.submit(late)
    assert only.end is not None
    assert only.end.reason == "deadline"
