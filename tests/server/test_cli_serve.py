"""`fourstep serve`: what it refuses before it listens, and one whole life of a process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
from fourstep.v1 import inference_pb2_grpc

from tests.server.rpc.working import text_request
from tests.server.tiny_checkpoint import write_checkpoint

ROOT = Path(__file__).parents[2]


def test_a_process_serves_on_a_socket_until_it_is_told_to_stop(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tiny")
    address = f"unix:{tmp_path / 'socket'}"
    command = [
        sys.executable,
        "-c",
        "from server.cli import main; main()",
        "serve",
        str(folder),
        "--listen",
        address,
    ]
    command += ["--compiler", "eager", "--context", "128", "--slots", "1", "--grace", "0"]
    command += ["--operations", "127.0.0.1:0"]
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
    assert "fourstep.v1.Control on unix:" in said
