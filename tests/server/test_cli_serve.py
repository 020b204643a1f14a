"""`fourstep serve` as a process: what it says, how it leaves, and what it refuses at once."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer
from fourstep.v1 import inference_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from server import cli_serve
from server.banner import security
from server.cli_serve import open_served, turns
from server.config import ListenerConfig, ServeConfig, TlsConfig
from server.rpc.served import Served
from tests.artifacts import eager_artifact
from tests.server.rpc.working import text_request, tiny_config
from tests.server.tiny_checkpoint import write_checkpoint
from tests.sources import ROOT, environment

HANG_S = 120  # far above what anything here takes


@contextmanager
def serving(*flags: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", "from server.cli import main; main()", "serve", *flags]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(OMP_NUM_THREADS="1", **variables),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tiny(folder: Path) -> tuple[str, list[str]]:
    """An address, and flags that serve a tiny model there."""
    address = f"unix:{folder / 'socket'}"
    flags = [str(write_checkpoint(folder / "tiny")), "--listen", address, "--compiler", "eager"]
    return address, [*flags, "--context", "512", "--slots", "2", "--operations", "127.0.0.1:0"]


def said(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=HANG_S)[1]


def health(channel: grpc.Channel) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)  # its methods are made at run time
    return stub.Check(health_pb2.HealthCheckRequest()).status


def test_a_process_serves_drains_and_can_be_hurried(tmp_path: Path) -> None:
    address, flags = tiny(tmp_path)
    with (
        serving(*flags, "--grace", "600", "--timeout", "600") as process,
        grpc.insecure_channel(address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)
        running = stub.Generate(text_request(max_tokens=500), wait_for_ready=True, timeout=HANG_S)
        next(running)
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING
        process.send_signal(signal.SIGTERM)
        while health(channel) != health_pb2.HealthCheckResponse.NOT_SERVING:
            pass
        admitted = list(stub.Generate(text_request()))  # the grace is for those who do not know
        assert sum(len(message.token_ids) for message in admitted) == 12
        process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as caught:
            list(running)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        lines = said(process).splitlines()
        assert process.returncode == 0
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert shown["model"] == "tiny, bf16, 2 slots of 512 positions, up to 3 drafts a step"
    assert shown["engines"].endswith("; 0 captured by eager")
    assert shown["listening"] == (
        f"{address}, this user alone, no tokens: fourstep.v1.Inference, fourstep.v1.Control"
    )
    assert shown["operations"].startswith("http://127.0.0.1:")
    assert {"machine", "limits"} <= shown.keys()
    assert not (tmp_path / "socket").exists()


def test_a_failed_engine_ends_its_requests_and_the_process(tmp_path: Path) -> None:
    address, flags = tiny(tmp_path)
    with (
        serving(*flags, FOURSTEP_FAILPOINTS="engine.lost=30") as process,
        grpc.insecure_channel(address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = text_request(max_tokens=500)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(request, wait_for_ready=True, timeout=HANG_S))
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert "injected failure" in (caught.value.details() or "")
        shown = said(process)
    assert process.returncode == 1
    assert "InjectedError" in shown


def test_an_engine_that_cannot_begin_is_one_line_and_no_service(tmp_path: Path) -> None:
    _, flags = tiny(tmp_path)
    with serving(*flags, FOURSTEP_FAILPOINTS="engine.lost=1") as process:
        shown = said(process)
    assert process.returncode == 1
    assert shown.startswith("fourstep: error: the engine failed")
    assert len(shown.splitlines()) == 1
    assert "listening" not in shown


def test_what_is_wrong_is_said_at_once_and_before_the_model_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "socket").write_text("")
    (tmp_path / "tokens").write_text("")
    flags = [str(tmp_path / "nothing"), "--listen", f"unix:{tmp_path / 'socket'}"]
    flags += ["--tokens", str(tmp_path / "tokens")]
    flags += ["--tls-cert", str(tmp_path / "cert"), "--tls-key", str(tmp_path / "key")]
    with serving(*flags) as process:
        shown = said(process)
    assert process.returncode == 2
    lines = shown.splitlines()
    for line, words in zip(
        lines,
        (
            "--listen: unix:",
            f"--tls-key: {tmp_path / 'key'}: No such file",
            f"--tokens: {tmp_path / 'tokens'}: other users can read",
            f"--tokens: {tmp_path / 'tokens'}: has no token",
        ),
        strict=True,
    ):
        assert line.startswith("fourstep: error: ")
        assert words in line


def test_an_address_of_operations_that_is_taken_is_told_by_its_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with serving("--listen", f"unix:{tmp_path / 's'}", "--operations", address) as process:
            shown = said(process)
    assert process.returncode == 2
    assert shown.startswith(f"fourstep: error: --operations: {address}: Address already in use")


def test_an_address_that_is_taken_while_the_model_loads_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
    taken = list[socket.socket]()

    def loaded(config: ServeConfig, **options: Any) -> Served:
        served = open_served(config, **options)
        taken.append(socket.create_server(("127.0.0.1", int(address.partition(":")[2]))))
        return served

    monkeypatch.setattr(cli_serve, "open_served", loaded)
    listeners = (ListenerConfig(address=address),)
    config = tiny_config(write_checkpoint(tmp_path / "tiny"), listeners=listeners)
    with pytest.raises(typer.Exit) as left:
        cli_serve.run(config, {})
    taken[0].close()
    assert left.value.exit_code == 2
    assert capsys.readouterr().err == f"fourstep: error: {address}: Address already in use\n"
    assert "engine" not in {thread.name for thread in threading.enumerate()}


def test_engines_for_fewer_slots_than_there_are_tell_so() -> None:
    """They would silently take turns."""
    artifact = eager_artifact()
    assert turns(artifact, 4) is None
    assert turns(artifact, 1) is None
    said = turns(artifact, 6)
    assert said is not None
    assert said.startswith(f"{artifact.folder} has engines for 4 of 6 slots a step")
    assert said.endswith("set slots to 4, or build with --batches 1,6")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ListenerConfig(), "plaintext, no tokens"),
        (ListenerConfig(tokens=Path("t")), "plaintext, tokens"),
        (ListenerConfig(address="unix:/s"), "this user alone, no tokens"),
        (ListenerConfig(tls=TlsConfig(cert=Path("c"), key=Path("k"))), "TLS, no tokens"),
        (
            ListenerConfig(
                tls=TlsConfig(cert=Path("c"), key=Path("k"), client_ca=Path("a")), tokens=Path("t")
            ),
            "TLS with client certificates, tokens",
        ),
    ],
)
def test_how_a_listener_is_secured_is_said(config: ListenerConfig, words: str) -> None:
    assert security(config) == words
