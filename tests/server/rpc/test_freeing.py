"""Whoever leaves, whichever way and in whatever state: the slot is free after one step at most."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from fourstep.v1 import inference_pb2 as pb

from runtime.answer import Output
from runtime.streams import AsyncStream
from server.config import LimitsConfig
from tests.server.rpc.working import Running, running, text_request, until
from tests.server.tiny_checkpoint import write_checkpoint

CAP_S = 3600.0
LONG = "def read(" * 40  # more than one chunk
# A state, and the steps that bring a request there.
STATES = (("queued", 0), ("loading", 1), ("running", 4))
Leave = Callable[[Running, grpc.Call], None]


class Gate:
    """Lets the engine's thread make so many steps, and counts those that called the engine: for a
    chunk of a prompt, for a decode, or for both."""

    def __init__(self, worker: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scheduler = worker.served.service._scheduler
        self.steps, self._called = 0, False
        self._permits, self._step = threading.Semaphore(0), self.scheduler.step
        monkeypatch.setattr(self.scheduler, "step", self._gated)
        for name in ("prefill_chunk", "decode"):
            monkeypatch.setattr(self.scheduler.engine, name, self._counted(name))

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self._permits.release()

    def _gated(self) -> list[Output]:
        assert self._permits.acquire(timeout=120)
        self._called = False
        outputs = self._step()
        self.steps += self._called
        return outputs

    def _counted(self, name: str) -> Callable[..., object]:
        call = getattr(self.scheduler.engine, name)

        def counted(*arguments: object, **named: object) -> object:
            self._called = True
            return call(*arguments, **named)

        return counted


def queued(stream: AsyncStream | None) -> bool:
    return stream is not None and stream._submission.admitted.done()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = write_checkpoint(tmp_path_factory.mktemp("freeing") / "tiny")
    with running(folder, limits=LimitsConfig(deadline_s=CAP_S)) as made:
        yield made


@pytest.fixture
def gate(worker: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(worker, monkeypatch)
    yield made
    made.let(1000)  # what is left is not to be waited for
    until(lambda: worker.served.service._scheduler.idle)


def go_away(worker: Running, call: grpc.Call) -> None:
    call.cancel()
    until(lambda: not worker.served._open)


def cancel(worker: Running, call: grpc.Call) -> None:
    found = worker.inference.Cancel(pb.CancelRequest(request_ids=["mine"]))
    assert list(found.cancelled_ids) == ["mine"]


def meet_the_workers_deadline(worker: Running, call: grpc.Call) -> None:
    worker.served.service._scheduler._clock = lambda: time.monotonic() + CAP_S


def meet_the_callers_deadline(worker: Running, call: grpc.Call) -> None:
    until(lambda: not worker.served._open)


@pytest.mark.parametrize(
    ("leave", "code", "state"),
    [
        *(
            (*pair, state)
            for pair, state in itertools.product(
                [
                    (go_away, "CANCELLED"),
                    (cancel, "CANCELLED"),
                    (meet_the_workers_deadline, "DEADLINE_EXCEEDED"),
                ],
                STATES,
            )
        ),
        # Which takes its time, and to the worker is as one who goes away.
        (meet_the_callers_deadline, "DEADLINE_EXCEEDED", STATES[-1]),
    ],
)
def test_leaving_frees_the_slot(
    worker: Running,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    leave: Leave,
    code: str,
    state: tuple[str, int],
) -> None:
    monkeypatch.setattr(gate.scheduler, "_clock", time.monotonic)
    phase, steps = state
    request = text_request(LONG, max_tokens=30)
    request.request_id = "mine"
    request.cache_salt = f"{leave} {state}"  # what is cached would be loaded at once
    timeout = 4.0 if leave is meet_the_callers_deadline else None
    call = worker.inference.Generate(request, timeout=timeout)
    until(lambda: [queued(one.stream) for one in worker.served._open.values()] == [True])
    gate.let(steps)
    until(lambda: worker.served.service.load[phase] == 1)
    leave(worker, call)
    before = gate.steps
    gate.let(100)
    until(lambda: gate.scheduler.idle)
    assert gate.steps - before <= 1
    load = worker.served.service.load
    assert (load["queued"], load["loading"], load["running"], load["blocks_used"]) == (0, 0, 0, 0)
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() == grpc.StatusCode[code]


def test_an_id_is_free_when_its_call_is_over(worker: Running, gate: Gate) -> None:
    """Not only once the engine has ended what was left of it."""
    request = text_request()
    request.request_id = "mine"
    call = worker.inference.Generate(request)
    until(lambda: [queued(one.stream) for one in worker.served._open.values()] == [True])
    go_away(worker, call)
    again = worker.inference.Generate(request)
    until(lambda: len(worker.served._open) == 1)
    gate.let(100)
    assert list(again)[-1].HasField("end")
