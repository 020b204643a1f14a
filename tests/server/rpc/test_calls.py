"""A call that ends before its request is queued: cancelled or left while it is still being read."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import pytest
from fourstep.v1 import inference_pb2 as pb

from server.rpc import served
from server.rpc.calls import seconds_left
from server.rpc.served import Asked
from tests.server.rpc.working import Running, reason_of, text_request, until


def named() -> pb.GenerateRequest:
    request = text_request()
    request.request_id = "mine"
    return request


def cancelled(worker: Running) -> list[str]:
    return list(worker.inference.Cancel(pb.CancelRequest(request_ids=["mine"])).cancelled_ids)


def test_cancel_ends_a_request_that_is_being_read(worker: Running, gate: threading.Event) -> None:
    call = worker.inference.Generate(named())
    until(lambda: cancelled(worker) == ["mine"])
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() == grpc.StatusCode.CANCELLED
    assert cancelled(worker) == []
    gate.set()
    assert len(list(worker.inference.Generate(named()))) > 1  # the id is free again


def test_an_id_is_in_use_from_the_beginning(worker: Running, gate: threading.Event) -> None:
    first = worker.inference.Generate(named())
    until(lambda: len(worker.served._open) == 1)
    with pytest.raises(grpc.RpcError) as caught:
        list(worker.inference.Generate(named()))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    gate.set()
    assert list(first)[-1].HasField("end")


def test_who_was_let_in_and_asks_too_late_is_sent_away(
    worker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message comes when the worker has begun to refuse."""
    let_in, late, look = threading.Event(), threading.Event(), worker.served.check_room

    def noted() -> None:
        look()
        let_in.set()

    def messages() -> Iterator[bytes]:
        late.wait(60)
        yield named().SerializeToString()

    monkeypatch.setattr(worker.served, "check_room", noted)
    method = worker.channel.stream_stream("/fourstep.v1.Inference/Generate")
    call = method(messages(), timeout=60)
    assert let_in.wait(60)
    monkeypatch.setattr(worker.served, "draining", True)
    late.set()
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert reason_of(caught.value) == "LEAVING"
    assert not worker.served._open


def test_who_leaves_while_it_is_read_runs_nothing(worker: Running, gate: threading.Event) -> None:
    call = worker.inference.Generate(named())
    until(lambda: len(worker.served._open) == 1)
    call.cancel()
    until(lambda: not worker.served._open)
    gate.set()
    assert not any(worker.served.service.load[name] for name in ("queued", "loading", "running"))


def test_small_messages_are_read_in_order_and_large_ones_beside_the_loop(
    worker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers, read = list[threading.Thread](), worker.served.text

    def noted(text: str) -> Asked:
        readers.append(threading.current_thread())
        return read(text[:20])

    monkeypatch.setattr(worker.served, "text", noted)
    for text in ("a", "b" * 2 * served.SMALL, "c"):
        assert list(worker.inference.Generate(text_request(text)))
    first, large, second = readers
    assert first is second
    assert large is not first


@pytest.mark.parametrize(("left", "seconds"), [(None, 60.0), (5.0, 5.0), (0.0, 0.0), (90.0, 60.0)])
def test_no_deadline_is_behind_the_cap(left: float | None, seconds: float) -> None:
    assert seconds_left(SimpleNamespace(time_remaining=lambda: left), 60.0) == seconds
