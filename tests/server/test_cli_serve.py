"""`fourstep serve`: what it refuses before it listens, and one whole life of a process."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from fourstep.v1 import inference_pb2_grpc

from server.cli_serve import is_local
from tests.server.rpc.working import options, text_request
from tests.server.tiny_checkpoint import write_checkpoint

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("[::1]", True),
        ("localhost", True),
        ("unix:socket", True),
        ("0.0.0.0", False),
        ("[::]", False),
        ("10.0.0.3", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_what_only_this_machine_can_reach(host: str, local: bool) -> None:
    assert is_local(host) == local


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    good = options(tmp_path)
    engine = dataclasses.replace(good.engine, slots=0, context=1)
    wrong = dataclasses.replace(good, host="0.0.0.0", engine=engine)
    with pytest.raises(ValueError, match=r"--host 0\.0\.0\.0.*--slots 0.*--context 1"):
        wrong.check()
    dataclasses.replace(good, host="0.0.0.0", exposed=True).check()


def test_a_process_serves_on_a_socket_until_it_is_told_to_stop(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tiny")
    address = f"unix:{tmp_path / 'socket'}"
    command = [
        sys.executable,
        "-c",
        "from server.cli import main; main()",
        "serve",
        str(folder),
        "--host",
        address,
    ]
    command += ["--compiler", "eager", "--context", "128", "--slots", "1", "--grace", "0"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with grpc.insecure_channel(address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            messages = list(stub.Generate(text_request(), wait_for_ready=True, timeout=60))
            assert sum(len(message.token_ids) for message in messages) == 12
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "tiny on" in said
    assert "fourstep.v1 on unix:" in said
