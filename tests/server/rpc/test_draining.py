"""The way out of service, as long as it may take and no longer."""

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from fourstep.v1 import control_pb2

from tests.server.rpc.working import reason_of, running, text_request, until


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
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert reason_of(caught.value) == "LEAVING"
    assert worker.code == 0
