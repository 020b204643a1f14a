"""Requests that are refused, each in its way: counted once, for the reason that is told."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from fourstep.v1 import inference_pb2 as pb

from runtime.scheduler import QueueFullError, Scheduler
from runtime.service import Service, ServiceClosedError, ServiceFailedError
from server.config import LimitsConfig, ListenerConfig
from server.operations.operations import Operations
from server.rpc.served import Asked, Served
from tests.server.rpc.working import Running, running_as, text_request, tiny_config, until
from tests.server.tiny_checkpoint import write_checkpoint

GENERATE = "/fourstep.v1.Inference/Generate"
TOKEN = "alice-alice-alice-alice"
IMAGE = pb.Part(image=pb.Image(url="x"))
NAMED = text_request()
NAMED.request_id = "mine"


class Counted(Running):
    """`refused`: how often since the last time, by reason, without those that never, once no more
    than so many calls are open: a caller knows earlier that one is over."""

    def __init__(self, operations: Operations, running: Running) -> None:
        self.__dict__.update(running.__dict__)
        self._operations, self._before = operations, dict[str, float]()

    def refused(self, *, running: int = 0) -> dict[str, float]:
        until(lambda: self._sum("calls_begun_total") == self._sum("calls_total") + running)
        found = {one.labels["reason"]: one.value for one in self._samples("requests_refused_total")}
        before, self._before = self._before, found
        new = {reason: count - before.get(reason, 0.0) for reason, count in found.items()}
        return {reason: count for reason, count in new.items() if count}

    def _sum(self, name: str) -> float:
        return sum(one.value for one in self._samples(name))

    def _samples(self, name: str) -> list[Any]:
        return [
            sample
            for family in self._operations.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"fourstep_{name}"
        ]

    def ask(self, request: Any = NAMED, *, token: str = TOKEN) -> grpc.StatusCode:
        """What the call ends with."""
        call = self.inference.Generate(request, metadata=bearer(token))
        with contextlib.suppress(grpc.RpcError):
            list(call)
        return call.code()


@pytest.fixture(scope="module")
def module_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    folder = tmp_path_factory.mktemp("refusals")
    tokens = folder / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"alice {TOKEN}\n", encoding="utf-8")
    config = tiny_config(
        write_checkpoint(folder / "tiny"),
        listeners=(ListenerConfig(address="127.0.0.1:0", tokens=tokens),),
        limits=LimitsConfig(queued=4, tenant_requests=2),
    )
    with (
        Operations(config.operations) as operations,
        running_as(config, operations=operations) as made,
    ):
        yield Counted(operations, made)


@pytest.fixture
def worker(module_worker: Counted) -> Counted:
    until(lambda: not module_worker.served._open)
    module_worker.refused()
    return module_worker


def bearer(token: str = TOKEN) -> Any:
    return [("authorization", f"Bearer {token}")]


def closed(self: Service) -> None:
    raise ServiceClosedError("the service is closed")


def failed(self: Service) -> None:
    raise ServiceFailedError("the engine failed")


def full(*_: object) -> None:
    raise QueueFullError("4 answers wait, 4 may: try again later")


def broken(self: Served, text: str) -> Asked:
    raise ZeroDivisionError(text)


@pytest.mark.parametrize(
    ("where", "name", "value", "reason"),
    [
        (Service, "check_room", full, "queue_full"),
        (Scheduler, "submit", full, "queue_full"),
        (Service, "_check_open", closed, "leaving"),
        (Service, "_check_open", failed, "fault"),
        (Served, "text", broken, "fault"),
    ],
)
def test_what_the_worker_cannot_take(
    worker: Counted,
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    name: str,
    value: Any,
    reason: str,
) -> None:
    monkeypatch.setattr(where, name, value)
    assert worker.ask() is not grpc.StatusCode.OK
    assert worker.refused() == {reason: 1}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[2**31]))), "invalid"),
        (pb.GenerateRequest(request_id="x" * 1000), "invalid"),
        (text_request(n=99), "invalid"),
        (text_request(constraint=pb.Constraint(regex="(")), "invalid"),
        (text_request(n=5), "invalid"),  # more than may wait: by the engine's thread
        (
            pb.GenerateRequest(
                prompt=pb.Prompt(chat=pb.Chat(messages=[pb.Message(role="user", parts=[IMAGE])]))
            ),
            "unsupported",
        ),
    ],
)
def test_what_cannot_run(worker: Counted, request_: pb.GenerateRequest, reason: str) -> None:
    assert worker.ask(request_) is not grpc.StatusCode.OK
    assert worker.refused() == {reason: 1}


def test_who_is_not_known_and_what_is_no_message(worker: Counted) -> None:
    assert worker.ask(token="x" * 20) is grpc.StatusCode.UNAUTHENTICATED
    assert worker.refused() == {"unauthenticated": 1}
    generate = worker.channel.unary_stream(GENERATE)
    with pytest.raises(grpc.RpcError):
        list(generate(b"is no message", metadata=bearer()))
    assert worker.refused() == {"invalid": 1}


def test_a_name_that_has_enough_and_an_id_in_use(worker: Counted, gate: threading.Event) -> None:
    first = worker.inference.Generate(NAMED, metadata=bearer())
    until(lambda: len(worker.served._open) == 1)
    assert worker.ask() is grpc.StatusCode.INVALID_ARGUMENT
    assert worker.refused(running=1) == {"invalid": 1}
    second = worker.inference.Generate(text_request(), metadata=bearer())
    until(lambda: len(worker.served._open) == 2)
    assert worker.ask() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert worker.refused(running=2) == {"tenant_busy": 1}
    gate.set()
    for call in (first, second):
        assert list(call)[-1].HasField("end")
    assert not worker.refused()


@pytest.mark.parametrize("cut", [False, True])
def test_who_comes_when_the_worker_leaves(
    worker: Counted, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    """Too late, or early enough to be read while it ends."""
    call = worker.inference.Generate(NAMED, metadata=bearer())
    until(lambda: len(worker.served._open) == 1)
    monkeypatch.setattr(worker.served, "cut", cut)
    if cut:
        worker.loop.call_soon_threadsafe(worker.served.cancel_all)
        with pytest.raises(grpc.RpcError):
            list(call)
    else:
        monkeypatch.setattr(worker.served, "draining", True)
        assert worker.ask() is grpc.StatusCode.UNAVAILABLE
        gate.set()
        assert list(call)[-1].HasField("end")
    assert worker.refused() == {"leaving": 1}


def test_who_was_queued_is_not_refused(worker: Counted) -> None:
    """However it ends; nor who leaves before, nor what asks for no answer."""

    def ended(act: Callable[[Any], object], **sampling: Any) -> None:
        request = text_request(max_tokens=240, **sampling)
        request.request_id = "mine"
        call = worker.inference.Generate(request, metadata=bearer())
        act(call)
        with pytest.raises(grpc.RpcError):
            list(call)
        until(lambda: not worker.served._open)

    def cancel(call: Any) -> None:
        worker.inference.Cancel(pb.CancelRequest(request_ids=["mine"]), metadata=bearer())

    ended(lambda call: (next(call), cancel(call)))
    held = threading.Event()
    worker.served.service._post(held.wait)
    call = worker.inference.Generate(text_request(), metadata=bearer())
    until(lambda: len(worker.served._open) == 1)
    call.cancel()
    until(lambda: not worker.served._open)
    held.set()
    # Which costs too much with the second token.
    ended(lambda _: None, constraint=pb.Constraint(regex="a{9999}{9999}"), ignore_eos=False)
    with pytest.raises(grpc.RpcError):
        worker.inference.Tokenize(pb.TokenizeRequest(), metadata=bearer())
    assert worker.ask() is grpc.StatusCode.OK
    assert not worker.refused()
