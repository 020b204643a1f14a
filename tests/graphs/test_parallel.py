"""Compile workers and their builder: none of them stays when it is killed. What they include in
place of a standard header does the same."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphs.compile import parallel
from graphs.compile.native import STAND_INS
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


def test_an_interrupted_worker_takes_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool hands out programs ahead, and a first one makes what all need anew."""
    monkeypatch.setattr(parallel, "_interrupted", threading.Event())
    begun: list[str] = []

    def interrupted(task: Any, folder: Path) -> Path:
        begun.append(task.key)
        raise KeyboardInterrupt

    compiler: Any = SimpleNamespace(compile=interrupted)
    for key in ("one", "two"):
        task: Any = SimpleNamespace(key=key)
        with pytest.raises(KeyboardInterrupt):
            parallel._compile(compiler, task, tmp_path)
    assert begun == ["one"]


class Telling:
    """A compiler that tells how torch's is set up, and where that puts its files."""

    name = "telling"

    def compile(self, task: Any, folder: Path) -> Path:
        from torch._inductor import config
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        beside = Path(cache_dir()).parent == folder
        told = folder / f"{task.key}.txt"
        settings = config.max_autotune, config.trace.enabled, config.aot_inductor.debug_compile
        told.write_text(f"{beside} {settings}", encoding="ascii")
        return told


def test_the_environment_does_not_say_how_to_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "with space"))
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", "1")
    monkeypatch.setenv("AOT_INDUCTOR_DEBUG_COMPILE", "1")
    task, compiler = SimpleNamespace(key="one", name="one"), Telling()
    here = tmp_path / "programs"
    here.mkdir()
    files = compile_all(compiler, [task], here, jobs=1)  # pyright: ignore[reportArgumentType]
    assert files["one"].read_text(encoding="ascii") == "True (False, False, False)"
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]
    assert os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"  # for others it is still there


NAMES = [
    "",
    " cpu",
    "cpu",
    "cuda",
    "cuda:1",
    "xpu:23",
    "mps",
    "cpu:",
    ":1",
    "cpu:x",
    "g",
    "cpu:1:2",
]
EXPRESSION = "(cpu|cuda|xpu|mps)(:([0-9]+))?"
DRIVER = """
#include <iostream>
#include <regex>
int main(int count, char** words) {
  for (int i = 2; i < count; ++i) {
    std::regex re{std::string(words[1])};
    std::smatch groups;
    std::string name = words[i];
    if (!std::regex_match(name, groups, re)) std::cout << "no";
    else for (const auto& group : groups) std::cout << group.matched << group.str() << ' ';
    std::cout << std::endl;
  }
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two programs: with the compiler's own header, and with what workers include."""
    folder = tmp_path_factory.mktemp("driver")
    source = folder / "driver.cpp"
    source.write_text(DRIVER, encoding="ascii")
    command = [shutil.which("g++") or "c++", "-std=c++17", source, "-o"]
    subprocess.run([*command, folder / "own"], check=True)
    subprocess.run([*command, folder / "ours", "-I", STAND_INS], check=True)
    return folder


def test_the_stand_in_reads_devices_as_the_standard_does(driver: Path) -> None:
    own, ours = (
        subprocess.run([driver / name, EXPRESSION, *NAMES], capture_output=True, check=True).stdout
        for name in ("own", "ours")
    )
    assert own == ours
    assert len(ours.splitlines()) == len(NAMES)
    assert b"1cuda:1 1cuda 1:1 11 " in ours


def test_the_stand_in_refuses_another_expression(driver: Path) -> None:
    done = subprocess.run([driver / "ours", "cpu|tpu", "cpu"], capture_output=True, check=False)
    assert done.returncode != 0
    assert b"stand-in for <regex> does not know cpu|tpu" in done.stderr
