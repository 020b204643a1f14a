"""Compile workers and their builder: none of them stays when it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from graphs.compile.parallel import compile_all
from tests.server.rpc.working import until
from tests.sources import ROOT, environment


class Endless:
    """A compiler that tells its process and never ends."""

    name = "endless"

    def compile(self, task: Any, folder: Path) -> Path:
        told = Path(task.key).with_suffix(".part")
        told.write_text(str(os.getpid()), encoding="ascii")
        told.rename(task.key)
        time.sleep(3600)
        return folder


def compile_endlessly(folder: Path) -> None:
    tasks: Any = [SimpleNamespace(key=str(folder / name), name=name) for name in ("one", "two")]
    compiler: Any = Endless()
    compile_all(compiler, tasks, folder, jobs=2)


def runs(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_no_worker_outlives_its_builder(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from tests.graphs.test_parallel import *; "
    builder = subprocess.Popen(
        [sys.executable, "-c", program + "compile_endlessly(Path(sys.argv[1]))", str(tmp_path)],
        cwd=ROOT,
        env=environment(),
    )
    told = [tmp_path / name for name in ("one", "two")]
    try:
        until(lambda: all(path.exists() for path in told), 120)
    finally:
        builder.send_signal(signal.SIGKILL)
        builder.wait()
    workers = [int(path.read_text(encoding="ascii")) for path in told]
    try:
        until(lambda: not any(map(runs, workers)), 60)
    finally:
        for one in filter(runs, workers):
            os.kill(one, signal.SIGKILL)
