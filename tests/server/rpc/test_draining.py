"""The way out of service, as long as it may take and no longer."""

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from fourstep.v1 import control_pb2

from tests.server.rpc.working import reason_of, running, text_request, until


def was_cut(call: Any) -> None:
    """Because the worker could not wait for it."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert reason_of(caught.value) == "LEAVING"


@pytest.mark.parametrize(
    ("configured", "asked"),
    [
        ({"grace_s": 0.0, "timeout_s": 0.0}, {}),
        ({"grace_s": 600.0, "timeout_s": 600.0}, {"grace_seconds": 0, "timeout_seconds": 0}),
    ],
)
def test_what_runs_longer_than_it_may_is_cut(
    folder: Path, configured: dict[str, float], asked: dict[str, Any]
) -> None:
    """As the configuration says, or who asks."""
    gate = threading.Event()
    with running(folder, **configured) as worker:
        call = worker.inference.Generate(text_request(max_tokens=240))
        next(call)
        worker.served.service._post(gate.wait)  # it does not come to its end meanwhile
        try:
            worker.control.Drain(control_pb2.DrainRequest(**asked))
            until(lambda: worker.served.cut)
        finally:
            gate.set()
        was_cut(call)
    assert worker.code == 0


def test_a_signal_does_not_hurry_who_leaves_already(folder: Path) -> None:
    """A router tells it to leave, then a supervisor to stop; the next signal is in a hurry."""
    with running(folder, grace_s=600.0, timeout_s=600.0) as worker:
        signal = worker.worker.signalled
        call = worker.inference.Generate(text_request(max_tokens=240))
        next(call)
        worker.control.Drain(control_pb2.DrainRequest(grace_seconds=0))
        until(lambda: worker.served.draining)
        worker.loop.call_soon_threadsafe(signal)
        assert list(call)[-1].HasField("end")
    assert worker.code == 0


@pytest.mark.parametrize("told", ["drain", "signalled"])
def test_the_second_time_does_not_wait(folder: Path, told: str) -> None:
    with running(folder, grace_s=600.0, timeout_s=600.0) as worker:
        call = worker.inference.Generate(text_request(max_tokens=240))
        next(call)
        for _ in range(2):
            worker.loop.call_soon_threadsafe(getattr(worker.worker, told))
        was_cut(call)
    assert worker.code == 0
