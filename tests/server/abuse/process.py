"""A worker in a process of its own, whose memory, descriptors and threads can be measured.

Run as a program it serves what a configuration file says until its input ends; each line of it is
failures to arm (runtime/failpoints.py), answered with a line of measurements. Keeps true: memory is
measured after everything that can be given back was.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from fourstep.v1 import control_pb2, control_pb2_grpc, inference_pb2_grpc

from runtime import failpoints
from server.config_file import load
from server.operations.operations import Operations
from tests.server.rpc.working import Running, running_as, until
from tests.sources import ROOT

PROCESS = Path("/proc/self")
TAIL = 2000  # characters of a log
# Threads that the event loop keeps for slow work at most; they come one by one (asyncio.to_thread).
POOL = min(32, (os.cpu_count() or 1) + 4)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """`open`: requests that some call has open."""

    open: int
    memory_mib: float
    descriptors: int
    threads: int


class WorkerProcess:
    """The process, and a channel to its first listener."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self.addresses: list[str] = json.loads(self._line())
        self.channel = grpc.insecure_channel(self.addresses[0])
        self.inference = inference_pb2_grpc.InferenceStub(self.channel)
        self.control = control_pb2_grpc.ControlStub(self.channel)

    def measure(self, failures: str = "") -> Measured:
        """What it is now; these failures, and no others, are armed from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(failures + "\n")
        self._process.stdin.flush()
        return Measured(**json.loads(self._line()))

    def idle(self) -> bool:
        """Whether no request runs, waits or holds a block."""
        load = self.control.GetLoad(control_pb2.GetLoadRequest())
        return not (load.queued or load.loading or load.running or load.blocks_used)

    def at_rest(self) -> Measured:
        """Measurements once it is idle. AssertionError if it does not come to rest."""
        assert self._process.poll() is None, self._end()
        until(self.idle, seconds=60)
        until(lambda: self.measure().open == 0, seconds=60)
        return self.measure()

    def close(self) -> None:
        """AssertionError unless it ends well."""
        assert self._process.stdin is not None
        self.channel.close()
        self._process.stdin.close()
        assert self._process.wait(60) == 0

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._end()
        return line

    def _end(self) -> str:
        log = self._log.read_text(encoding="utf-8", errors="replace")
        return f"the worker has ended with {self._process.wait(10)}: {log[-TAIL:]}"


@contextmanager
def worker_process(config: Path) -> Iterator[WorkerProcess]:
    """One that serves what the file says."""
    command = [sys.executable, "-m", "tests.server.abuse.process", str(config)]
    pipe = subprocess.PIPE
    with (
        log_of(config).open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=ROOT
        ) as process,
    ):
        try:
            made = WorkerProcess(process, log_of(config))
            yield made
            made.close()
        finally:
            process.kill()


def log_of(config: Path) -> Path:
    """Where the worker of this configuration logs to."""
    return config.with_suffix(".log")


def tiny_file(checkpoint: Path, **limits: float) -> Path:
    """A configuration, beside the checkpoint: that of tests/server/rpc/working.py, with limits."""
    file = checkpoint.with_suffix(".toml")
    lines = "".join(f"{key} = {value}\n" for key, value in limits.items())
    anywhere = 'address = "127.0.0.1:0"'
    file.write_text(
        f'[model]\ncheckpoint = "{checkpoint}"\ncompiler = "eager"\ncontext = 256\nslots = 2\n'
        f"[[listeners]]\n{anywhere}\n[operations]\n{anywhere}\n[limits]\n{lines}",
        encoding="utf-8",
    )
    return file


def _measured(worker: Running) -> dict[str, Any]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = (PROCESS / "status").read_text(encoding="utf-8")
    kib = int(status.partition("VmRSS:")[2].split()[0])
    return {
        "open": len(worker.served._open),
        "memory_mib": kib / 1024,
        "descriptors": len(list((PROCESS / "fd").iterdir())),
        "threads": threading.active_count(),
    }


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    config = load(Path(sys.argv[1]))
    with (
        Operations(config.operations) as operations,
        running_as(config, operations=operations) as worker,
    ):
        _say([one.address for one in worker.worker.listeners])
        for line in sys.stdin:
            failpoints.arm(failpoints.parse(line.strip()))
            _say(_measured(worker))


if __name__ == "__main__":
    main()
