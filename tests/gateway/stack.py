"""A real gateway before two workers of step5-nano, all of them processes of this machine.

Knows commands, ports and how to ask each process how it is. Keeps true: whatever happens, no
process is left; a worker that is started again has the addresses that it had.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import openai
from fourstep.v1 import control_pb2, control_pb2_grpc, inference_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from tests.sources import ROOT, environment

MODEL = "step5-nano"
CONTEXT, SLOTS, QUEUED = 1024, 2, 2
_WAIT = 120.0  # seconds: a hang guard


def until(condition: Any, process: "subprocess.Popen[bytes] | None" = None) -> None:
    """Wait for it. AssertionError if it does not come true, or a process ends meanwhile."""
    end = time.monotonic() + _WAIT
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        assert process is None or process.poll() is None, "the process ended"
        time.sleep(0.05)


def free_port() -> int:
    """One that no client is given by chance: below those that systems hand out."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                continue
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def fetched(port: int, path: str) -> str | None:
    """None where nobody answers yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.read().decode()
    except OSError:
        return None


def end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Worker:
    """`process`: the one that runs now."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.own, self.port, self.operations = free_port(), free_port(), free_port()
        self._channels = [grpc.insecure_channel(f"127.0.0.1:{p}") for p in (self.own, self.port)]
        self.inference = inference_pb2_grpc.InferenceStub(self._channels[0])
        self.control = control_pb2_grpc.ControlStub(self._channels[0])
        self.vllm: Any = vllm_engine_pb2_grpc.VllmEngineStub(self._channels[1])
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", "from server.cli import main; main()", "serve"]
        command += ["--compiler", "eager", "--context", str(CONTEXT), "--slots", str(SLOTS)]
        command += ["--queued", str(QUEUED), "--grace", "1", "--operations"]
        command += [f"127.0.0.1:{self.operations}", "--listen", f"127.0.0.1:{self.own}"]
        command += ["--listen-vllm", f"127.0.0.1:{self.port}"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(OMP_NUM_THREADS="1"),
                stderr=log,
            )

    def wait(self) -> None:
        """Until it serves."""
        until(lambda: fetched(self.operations, "/readyz") is not None, self.process)

    def metric(self, name: str, **labels: str) -> float:
        text = fetched(self.operations, "/metrics")
        assert text is not None
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels.items() >= labels.items():
                    return sample.value
        return 0.0

    @property
    def answers(self) -> int:
        """That it has now, waiting ones among them."""
        load = self.control.GetLoad(control_pb2.GetLoadRequest(), wait_for_ready=True, timeout=60)
        return load.queued + load.loading + load.running

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        end(self.process)


@dataclass(kw_only=True)
class Stack:
    """`client`: what the users of a gateway have; it does not try again by itself."""

    port: int
    workers: Sequence[Worker] = ()
    client: openai.OpenAI = field(init=False)

    def __post_init__(self) -> None:
        url = f"http://127.0.0.1:{self.port}/v1"
        self.client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=_WAIT)

    def chat(self, text: str, **options: Any) -> Any:
        """One question; greedy unless told otherwise."""
        chosen: dict[str, Any] = {"temperature": 0, "max_tokens": 60, **options}
        messages: Any = [{"role": "user", "content": text}]
        return self.client.chat.completions.create(model=MODEL, messages=messages, **chosen)

    @property
    def healthy(self) -> int:
        return healthy(self.port)

    def wait(self) -> None:
        """Until both workers serve and nobody asks them anything."""
        until(lambda: self.healthy == len(self.workers))
        until(lambda: not any(worker.answers for worker in self.workers))

    def busy(self) -> Worker:
        """The one worker that has something to do, once there is one."""
        until(lambda: any(worker.answers for worker in self.workers))
        [found] = [worker for worker in self.workers if worker.answers]
        return found


@contextmanager
def gateway(addresses: Sequence[str], log: Path) -> Iterator[int]:
    """The port of a gateway that has found these workers."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("smg")), "launch", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-host", "127.0.0.1"]
    command += ["--prometheus-port", str(free_port()), "--policy", "round_robin"]
    command += ["--reasoning-parser", "step3", "--tool-call-parser", "qwen_coder"]
    command += ["--health-check-interval-secs", "1", "--shutdown-grace-period-secs", "1"]
    # Requests are to meet a worker that is full, and one that has just come back.
    command += ["--disable-worker-overload-protection", "--cb-timeout-duration-secs", "1"]
    command += ["--worker-urls", *(f"grpc://{address}" for address in addresses)]
    with log.open("wb") as out:
        # A hub that is not there: a tokenizer comes from this machine or from a worker.
        hub = {"HF_ENDPOINT": "http://127.0.0.1:9"}
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **hub})
    try:
        until(lambda: healthy(port) == len(addresses), process)
        yield port
    finally:
        end(process)


def healthy(port: int) -> int:
    """Workers that a gateway sends requests to."""
    text = fetched(port, "/readiness")
    return 0 if text is None else json.loads(text).get("healthy_workers", 0)


@contextmanager
def stacked(folder: Path) -> Iterator[Stack]:
    """Two workers and a gateway that has found both; their logs are in the folder."""
    workers = [Worker(folder / f"worker{i}.log") for i in range(2)]
    try:
        for worker in workers:
            worker.wait()
        addresses = [f"127.0.0.1:{worker.port}" for worker in workers]
        with gateway(addresses, folder / "gateway.log") as port:
            stack = Stack(workers=workers, port=port)
            yield stack
            stack.client.close()
    finally:
        for worker in workers:
            worker.close()
