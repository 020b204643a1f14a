"""Who leaves while an engine is made waits for its thread: Python would end beside it, and torch,
which runs there, would take that for a fault and abort."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import pytest

from runtime.answer import Output
from runtime.scheduler import Scheduler
from runtime.service import Service
from server.ending import TERMINATED
from tests.runtime.served import request, scheduler
from tests.sources import ROOT

HANG_S = 120
# Each signal is sent while the thread computes, and only then is there more to compute.
LEAVES = """
import os, signal, sys, time
import torch
from runtime.service import Service
from server.ending import end_on_sigterm

def factory():
    for number in map(int, sys.argv[1:]):
        time.sleep(0.1)
        os.kill(os.getpid(), number)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        torch.ones(64) + 1
    os.write(1, b"whole")
    raise ValueError("nobody hears")

signal.signal(signal.SIGINT, signal.default_int_handler)
end_on_sigterm()
Service(factory)
"""


def test_who_leaves_while_it_is_made_waits_for_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits, made = threading.Event(), list[Scheduler]()

    class Leaving(Future[Scheduler]):
        def result(self, timeout: float | None = None) -> Scheduler:
            waits.set()
            raise KeyboardInterrupt

    def factory() -> Scheduler:
        waits.wait()
        time.sleep(0.1)  # who does not wait is gone by then
        made.append(scheduler())
        return made[0]

    monkeypatch.setattr("runtime.service.Future", Leaving)
    with pytest.raises(KeyboardInterrupt):
        Service(factory)
    assert len(made) == 1
    assert "engine" not in {thread.name for thread in threading.enumerate()}


def test_a_thread_that_cannot_start_is_not_waited_for() -> None:
    """The system has no thread left: nothing of the service stays behind, for its end least."""
    code = """
import threading
from runtime.service import Service

def start(thread):
    raise RuntimeError("can't start new thread")

threading.Thread.start = start
try:
    Service(lambda: None)
except RuntimeError as error:
    print(error, end="")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False, timeout=HANG_S
    )
    assert (done.returncode, done.stdout) == (0, b"can't start new thread"), done.stderr.decode()


def test_a_fork_of_the_process_has_no_service() -> None:
    """The thread stays with the parent: the child is refused what it asks for, and can end."""
    code = """
import os, sys
from runtime.service import Service, ServiceClosedError
from tests.runtime.test_service import request, scheduler

with Service(scheduler) as service:
    if os.fork() == 0:
        try:
            service.submit(request("child", 1))
        except ServiceClosedError as error:
            print(error, end="", flush=True)
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
    print(len(list(service.submit(request("parent", 1, max_tokens=1)))), end="")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False, timeout=HANG_S
    )
    assert (done.returncode, done.stdout) == (0, b"the service is closed1"), done.stderr.decode()


def test_the_engine_thread_cannot_wait_for_itself() -> None:
    said = list[str]()

    def deliver(output: Output) -> None:
        try:
            service.close()
        except AssertionError as error:
            said.append(str(error))

    with Service(scheduler) as service:
        service.send(request("a", 1, max_tokens=1), deliver)
    assert said == ["it would wait for itself"]


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ((signal.SIGTERM,), TERMINATED),
        ((signal.SIGINT,), -signal.SIGINT),
        ((signal.SIGTERM, signal.SIGINT), -signal.SIGINT),
        ((signal.SIGINT, signal.SIGINT, signal.SIGINT), -signal.SIGINT),
        ((signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGTERM), TERMINATED),
    ],
)
def test_signals_do_not_end_python_beside_the_thread(
    signals: tuple[signal.Signals, ...], code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, *(str(int(number)) for number in signals)],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=HANG_S,
    )
    assert (done.returncode, done.stdout) == (code, b"whole"), done.stderr.decode()
