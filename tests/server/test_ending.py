"""A build that ends whole, and by SIGTERM to the command alone, as a supervisor sends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from server.ending import TERMINATED, started
from tests.server.tiny_checkpoint import write_checkpoint
from tests.sources import ROOT

COMMAND = (sys.executable, "-c", "from server.cli import main; main()")
HANG_S = 300


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("ending") / "checkpoint")


def begun(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """The command, with no kernels to be found."""
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        [*COMMAND, *(str(argument) for argument in arguments)],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": f"{folder}/tmp", "XDG_CACHE_HOME": f"{folder}/cache"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def name(process: int) -> str:
    """Empty for one that is gone, and for one that has ended and is not yet waited for."""
    try:
        said = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    head, _, rest = said.rpartition(")")
    return "" if rest.split()[0] == "Z" else head.partition("(")[2]


def compiling(process: subprocess.Popen[str]) -> list[int]:
    """All that it has started, once compilers run."""
    deadline = time.monotonic() + HANG_S
    while True:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        children = list(started(process.pid))
        if "cc1plus" in map(name, children):
            return children
        time.sleep(0.02)


def test_a_whole_build_leaves_nothing_but_engines(checkpoint: Path, tmp_path: Path) -> None:
    """In a process of its own: torch makes folders when its parts are imported first."""
    (tmp_path / "tmp").mkdir()
    sizes = ("--widths", "1", "--batches", "1", "--contexts", "256", "--prefill", "16")
    arguments = ("build", checkpoint, "--out", tmp_path / "out", "--compiler", "eager", *sizes)
    done = subprocess.run(
        [*COMMAND, *(str(argument) for argument in arguments)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if "INDUCTOR" not in name}
        | {"TMPDIR": f"{tmp_path}/tmp"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"tmp", "out"}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system has no /proc")
@pytest.mark.parametrize("command", ["build", "serve"])
def test_a_build_ends_with_its_compilers_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, command: str
) -> None:
    arguments = {
        "build": ("--out", tmp_path / "out" / "engines"),
        "serve": ("--listen", f"unix:{tmp_path}/socket", "--operations", "127.0.0.1:0"),
    }[command]
    process = begun(tmp_path, command, checkpoint, *arguments)
    children = compiling(process)
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + HANG_S
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == TERMINATED
    # Python's resource tracker ends after its user; it may tell of semaphores that it removes.
    while any(map(name, children)):
        assert time.monotonic() < deadline
    assert "Traceback" not in err
    assert list((tmp_path / "tmp").iterdir()) == []
    left = [path for path in tmp_path.rglob("*") if "fourstep-build" in path.name]
    assert left == []
    assert list(tmp_path.rglob("*.partial")) == []
