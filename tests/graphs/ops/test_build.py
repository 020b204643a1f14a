"""The build of the kernels: what is compiled again and what never is; the pool's threads."""

import ctypes
import threading
from pathlib import Path

import pytest
import torch

from graphs.ops import build
from graphs.ops.build import KernelBuildError, build_kernels, dot_speed, set_threads
from graphs.ops.linear import linear
from tests.graphs.ops.dense_cases import BF16, random

SOURCES = {
    "a.cpp": '#include "a.h"\n#define OUT __attribute__((visibility("default")))\n'
    'extern "C" OUT int a() { return A; }',
    "a.h": "#define A 1",
    "kernels/k.cpp": '#include "kernels/k.h"\nnamespace FS_ISA { int k() { return K; } }',
    "kernels/k.h": "#define K 2",
}


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Small sources in place of the real ones; the list of commands that a build ran."""
    for name, text in SOURCES.items():
        path = tmp_path / "cpu" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ran: list[list[str]] = []
    run = build.run_compiler

    def counted(command: list[str]) -> None:
        ran.append(command)
        run(command)

    monkeypatch.setattr(build, "SOURCES", tmp_path / "cpu")
    monkeypatch.setattr(build, "run_compiler", counted)
    return ran


def compiled(commands: list[list[str]]) -> list[str]:
    names = [Path(command[command.index("-c") + 1]).name for command in commands if "-c" in command]
    commands.clear()
    return sorted(set(names))


def test_an_edit_compiles_what_it_touches(tmp_path: Path, commands: list[list[str]]) -> None:
    first = build_kernels(tmp_path)
    assert compiled(commands) == ["a.cpp", "k.cpp"]
    assert build_kernels(tmp_path) == first
    assert not commands
    (tmp_path / "cpu" / "a.h").write_text("#define A 7")
    second = build_kernels(tmp_path)
    assert compiled(commands) == ["a.cpp"]
    assert second != first
    assert [ctypes.CDLL(str(path)).a() for path in (first, second)] == [1, 7]


@pytest.mark.usefixtures("commands")
def test_an_interrupted_build_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build._version(build._compiler())  # remembered, so that only compilations are killed

    def killed(command: list[str], **_: object) -> None:
        Path(command[-1]).write_bytes(b"half an object")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build.subprocess, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            build_kernels(tmp_path, jobs=1)
    assert ctypes.CDLL(str(build_kernels(tmp_path))).a() == 1


@pytest.mark.usefixtures("commands")
def test_what_the_compiler_says_reaches_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu" / "a.h").write_text("#define A nonsense")
    with pytest.raises(KernelBuildError, match="nonsense"):
        build_kernels(tmp_path)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(KernelBuildError, match="needs a C\\+\\+ compiler"):
        build_kernels(tmp_path)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("rows", "width", "regions"), [(4, 256, 4096), (1, 22, 40), (64, 32, 1)])
def test_dot_speed_is_a_rate(rows: int, width: int, regions: int) -> None:
    assert 1e3 < dot_speed(rows, width, regions) < 1e12


@pytest.mark.usefixtures("kernels")
def test_callers_in_two_threads_do_not_disturb_each_other() -> None:
    """The pool serves one caller at a time; the other works alone."""
    x, weights = random(5, 256).to(BF16), [random(300, 256, seed=i).to(BF16) for i in range(2)]
    expected = [linear(x, [w], "bf16", BF16) for w in weights]
    wrong: list[int] = []

    def call(index: int) -> None:
        for _ in range(200):
            found = linear(x, [weights[index]], "bf16", BF16)
            if not torch.equal(found, expected[index]):
                wrong.append(index)

    set_threads(3)
    threads = [threading.Thread(target=call, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    set_threads(1)
    assert not wrong
