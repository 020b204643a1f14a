"""Limits by real clients: what is too much is refused with a status, and the rest goes on."""

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest
from fourstep.v1 import control_pb2, control_pb2_grpc
from fourstep.v1 import inference_pb2 as pb

from server.config import LimitsConfig
from server.rpc import served
from server.rpc.limits import options
from tests.server.rpc.working import Running, running, text_request, until
from tests.server.tiny_checkpoint import write_checkpoint

LIMITS = LimitsConfig(
    message_mib=1, metadata_kib=8, connections=6, streams=3, calls=4, queued=8, deadline_s=1e-3
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("limits") / "tiny")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Running]:
    with running(folder, limits=LIMITS) as made:
        yield made


def connect(worker: Running) -> grpc.Channel:
    """By a connection of its own."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(worker.worker.listeners[0].address, own)


def asked(worker: Running, **values: Any) -> str:
    return worker.control.GetModel(control_pb2.GetModelRequest(), timeout=20, **values).name


def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return caught.value.code()


def test_options_have_names_that_grpc_knows() -> None:
    found = find_spec("grpc._cython.cygrpc")
    assert found is not None
    assert found.origin is not None
    library = Path(found.origin).read_bytes()
    unknown = [name for name, _ in options(LimitsConfig()) if name.encode() not in library]
    assert not unknown


def test_a_message_that_is_too_large(worker: Running) -> None:
    call = worker.inference.Generate(text_request("x" * 2**20))
    assert code_of(call) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert asked(worker) == "tiny"


def test_metadata_that_is_too_large(worker: Running) -> None:
    with connect(worker) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetModel(control_pb2.GetModelRequest(), metadata=[("x", "y" * 9000)], timeout=20)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.GetModel(control_pb2.GetModelRequest(), metadata=[("x", "y" * 4000)]).name
    assert asked(worker) == "tiny"


def test_no_request_runs_longer_than_the_cap(worker: Running) -> None:
    for timeout in (None, 60):
        call = worker.inference.Generate(text_request(max_tokens=200), timeout=timeout)
        assert code_of(call) == grpc.StatusCode.DEADLINE_EXCEEDED


def test_more_calls_than_a_listener_may_have(
    worker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, read = threading.Event(), worker.served.text

    def slow(text: str) -> Any:
        assert gate.wait(60)
        return read(text)

    monkeypatch.setattr(worker.served, "text", slow)
    monkeypatch.setattr(served, "SMALL", -1)  # it is read beside the event loop
    with connect(worker) as one, connect(worker) as other:
        stubs = [type(worker.inference)(channel) for channel in (one, other)]
        held = [stubs[i % 2].Generate(text_request()) for i in range(4)]
        until(lambda: len(worker.served._open) == 4)
        assert code_of(stubs[0].Generate(text_request())) == grpc.StatusCode.RESOURCE_EXHAUSTED
        gate.set()
        assert {code_of(call) for call in held} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    until(lambda: not worker.served._open)
    assert asked(worker) == "tiny"


def test_a_connection_has_no_more_streams_than_it_may(
    worker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, read, most = threading.Event(), worker.served.text, list[int]()

    def slow(text: str) -> Any:
        most.append(len(worker.served._open))
        assert gate.wait(60)
        return read(text)

    monkeypatch.setattr(worker.served, "text", slow)
    monkeypatch.setattr(served, "SMALL", -1)  # it is read beside the event loop
    with connect(worker) as channel:
        stub = type(worker.inference)(channel)
        stub.Cancel(pb.CancelRequest())  # now the client knows how many it may have
        held = [stub.Generate(text_request()) for _ in range(6)]
        until(lambda: len(worker.served._open) == 3)
        gate.set()
        # The limit is grpc's, which under load refuses some of those that wait for a place.
        codes = {code_of(call) for call in held}
        assert codes <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
    assert max(most) == 3
    until(lambda: not worker.served._open)
    assert asked(worker) == "tiny"


def test_more_connections_than_may_be(worker: Running) -> None:
    channels = [connect(worker) for _ in range(8)]
    calls = [
        control_pb2_grpc.ControlStub(channel).GetModel.future(
            control_pb2.GetModelRequest(), timeout=20
        )
        for channel in channels
    ]
    codes = [call.code() for call in calls]
    for channel in channels:
        channel.close()
    assert codes.count(grpc.StatusCode.OK) in (5, 6)  # the fixture's own may be one
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
