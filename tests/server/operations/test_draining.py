"""Who takes a worker out of service, or tries to, is in the log by name."""

import logging
from pathlib import Path

import grpc
import pytest
from fourstep.v1 import control_pb2

from server.config import ListenerConfig
from server.operations.operations import Operations
from tests.server.operations.watched import Lines
from tests.server.rpc.working import running_as, tiny_config, until
from tests.server.tiny_checkpoint import write_checkpoint

ALICE, OPS = "alice-alice-alice-alice", "ops-ops-ops-ops-ops"


def test_the_log_says_who_drains_and_who_may_not(
    tmp_path: Path, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"alice {ALICE}\nops {OPS}\n", encoding="utf-8")
    asking = ListenerConfig(address="127.0.0.1:0", tokens=tokens, operators=("ops",))
    config = tiny_config(write_checkpoint(tmp_path / "tiny"), listeners=(asking,))
    request = control_pb2.DrainRequest()
    with (
        caplog.at_level(logging.INFO, "server.rpc.worker"),
        Operations(config.operations) as operations,
        running_as(config, operations=operations) as worker,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            worker.control.Drain(request, metadata=[("authorization", f"Bearer {ALICE}")])
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        until(lambda: bool(lines.found))
        worker.control.Drain(request, metadata=[("authorization", f"Bearer {OPS}")])
        until(lambda: worker.code is not None)
    assert [(line["status"], line["tenant"]) for line in lines.found] == [
        ("PERMISSION_DENIED", "alice")
    ]
    [told] = [vars(record) for record in caplog.records if record.message == "draining"]
    assert (told["by"], told["tenant"]) == ("fourstep.v1.Control/Drain", "ops")
