"""One life of a real process as its operators see it: probes, metrics, lines, and nobody's text."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fourstep.v1 import inference_pb2 as pb
from fourstep.v1 import inference_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.server.rpc.working import text_request, until
from tests.server.tiny_checkpoint import write_checkpoint
from tests.sources import ROOT, environment

SECRET = "my own secret"
CONFIG = """
[model]
checkpoint = "tiny"
compiler = "eager"
context = 128
slots = 1

[[listeners]]
address = "127.0.0.1:0"

[drain]
grace_s = 1.0

[operations]
address = "127.0.0.1:0"
log_format = "json"
"""

# A step that raises what nobody expects, some time after the worker's own first request.
FAULT = """
import itertools
from runtime.scheduler import Scheduler
turns, step = itertools.count(), Scheduler._decode
def broken(scheduler):
    step(scheduler)
    if next(turns) > 30:
        raise RuntimeError("illegal memory access")
Scheduler._decode = broken
"""


class Process:
    """`lines`: what it has logged up to now."""

    def __init__(self, folder: Path, before: str = "") -> None:
        write_checkpoint(folder / "tiny")
        (folder / "serve.toml").write_text(CONFIG, encoding="utf-8")
        self.lines: list[dict[str, Any]] = []
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{before}\nfrom server.cli import main; main()", "serve"]
            + ["--config", str(folder / "serve.toml")],
            cwd=ROOT,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.text += line
            with contextlib.suppress(json.JSONDecodeError):  # torch's and grpc's own words
                self.lines.append(json.loads(line))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == name]

    def wait_for(self, name: str) -> dict[str, Any]:
        until(lambda: bool(self.events(name)) or self.process.poll() is not None, 120)
        assert self.events(name), self.text
        return self.events(name)[0]

    def end(self) -> int:
        self.process.kill()
        self._reader.join(60)
        return self.process.wait(60)


@contextlib.contextmanager
def running(folder: Path, before: str = "") -> Iterator[Process]:
    made = Process(folder, before)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with running(tmp_path) as made:
        yield made


def fetch(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_one_life(process: Process) -> None:
    started = process.wait_for("serving")
    assert (started["model"], started["slots"], started["compiler"]) == ("tiny", 1, "eager")
    (listener,), operations = started["listeners"], started["operations"]
    assert fetch(operations, "/healthz")[0] == fetch(operations, "/readyz")[0] == 200

    before = samples(fetch(operations, "/metrics")[1])
    with grpc.insecure_channel(listener) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        messages = list(stub.Generate(text_request(SECRET), timeout=60))
        with pytest.raises(grpc.RpcError):
            list(stub.Generate(text_request(SECRET, constraint=pb.Constraint(regex="("))))
    usage = messages[-1].end.usage
    until(lambda: len(process.events("request")) == 2)
    good, bad = process.events("request")
    assert (good["status"], bad["status"]) == ("OK", "INVALID_ARGUMENT")
    assert good["request_id"] == messages[0].request_id
    assert (good["prompt_tokens"], good["answer_tokens"]) == (usage.prompt_tokens, 12)
    assert (good["steps"], good["accepted"]) == (usage.steps, usage.accepted_tokens)
    assert good["first_token_seconds"] == usage.first_token_seconds

    metrics = samples(fetch(operations, "/metrics")[1])
    assert metrics["fourstep_tokens_total"] == before["fourstep_tokens_total"] + 12
    assert metrics["fourstep_serving"] == 1
    for code in ("OK", "INVALID_ARGUMENT"):
        rpc = "fourstep.v1.Inference/Generate"
        assert metrics["fourstep_calls_total", code, listener, rpc] == 1
    assert metrics["process_open_fds"] > 0
    assert not [name for name in metrics if "_created" in str(name)]

    process.process.send_signal(signal.SIGTERM)
    line = process.wait_for("draining")
    assert (line["timeout_s"], line["by"], line["tenant"]) == (60, "SIGTERM", "")
    assert fetch(operations, "/readyz")[0] == 503
    assert fetch(operations, "/healthz")[0] == 200
    assert process.process.wait(60) == 0
    process.wait_for("stopped")
    assert SECRET not in process.text
    assert "".join(message.text for message in messages) not in process.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_do_not_turn_a_clean_end_into_another(
    process: Process, number: signal.Signals
) -> None:
    """The first, one in a hurry, and those that come while the interpreter ends."""
    process.wait_for("serving")
    process.process.send_signal(number)
    process.wait_for("draining")
    process.process.send_signal(number)
    process.wait_for("stopped")
    assert process.wait_for("leaving at once")["by"] == number.name
    while process.process.poll() is None:
        process.process.send_signal(number)
        time.sleep(0.005)
    assert process.process.wait() == 0, process.text
    assert "Traceback" not in process.text


def test_a_failure_is_told_and_is_the_end(tmp_path: Path) -> None:
    with running(tmp_path, FAULT) as process:
        started = process.wait_for("serving")
        with grpc.insecure_channel(started["listeners"][0]) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            call = stub.Generate(text_request(SECRET, max_tokens=100), timeout=60)
            with pytest.raises(grpc.RpcError):
                list(call)
            assert call.code() is grpc.StatusCode.INTERNAL
        failure = process.wait_for("the engine failed")
        assert failure["level"] == "ERROR"
        assert failure["exc_info"].endswith("broken > RuntimeError")
        line = process.wait_for("request")
        assert (line["status"], line["level"]) == ("INTERNAL", "ERROR")
        assert 0 < line["answer_tokens"] < 100
        assert line["failure"] == "the engine failed: RuntimeError: illegal memory access"
        assert process.process.wait(60) == 1
        assert not process.events("draining")
        assert SECRET not in process.text


def samples(text: str) -> dict[Any, float]:
    """By name, or by name and labels in the order of their names where there are any."""
    return {
        (sample.name, *dict(sorted(sample.labels.items())).values())
        if sample.labels
        else sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
