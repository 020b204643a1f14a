"""Programs from sources as torch packs them: small ones, in the form of the real ones."""

import ctypes
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from graphs.compile import native
from graphs.compile.native import Sources, build
from graphs.ops.build import KernelBuildError, run_compiler

CALLS = """#include <vector>
#include <string>
#ifdef WITHOUT
#error it has a flag that it should not
#endif
extern "C"  void  cpp_fused_0(const float* in,
                       float* out);
AOTI_NOINLINE static void check_input_0(
    AtenTensorHandle* input_handles
) {
    throw std::runtime_error("unmatched");
}

static bool _check_aoti_runtime_check_inputs_env() { return false; }
static void __check_inputs_outputs(void* input_handles) {
    if (!_check_aoti_runtime_check_inputs_env()){
        return;
    }
    check_input_0(input_handles);
}
extern "C" float run(float x) {
  std::vector<float> values{x, 0};
  __check_inputs_outputs(nullptr);
  cpp_fused_0(&values[0], &values[1]);
  return values[1];
}
"""
KERNELS = """
#include <cmath>
extern "C"  void  cpp_fused_0(const float* in,
                       float* out)
{
    *out = FACTOR * std::abs(*in);
}

#include <cmath>
extern "C"  void  cpp_fused_1(const float* in)
{
}
"""
FLAGS = {
    "compiler": "g++",
    "definitions": ["FIRST", " FACTOR=3"],
    "include_dirs": [],
    "cflags": ["O3", "fPIC", "Wall", "std=c++20"],
    "passthrough_args": ["", "-ffp-contract=off -fno-math-errno"],
    "ldflags": [],
    "libraries_dirs": [],
    "libraries": ["m"],
}


@pytest.fixture
def pack(tmp_path: Path) -> Callable[[str], Path]:
    """A package of such a program."""
    code, constants = tmp_path / "constants.s", tmp_path / "constants.o"
    code.write_text(".globl constant\nconstant: .byte 7\n")
    run_compiler(["g++", "-c", str(code), "-o", str(constants)])

    def packed(source: str) -> Path:
        package = tmp_path / "program.pt2"
        linking = {**FLAGS, "cflags": [*FLAGS["cflags"], "shared"]}
        with ZipFile(package, "w") as parts:
            parts.writestr("p/data/x.wrapper.cpp", source)
            parts.writestr("p/data/x.wrapper.json", "operators")
            parts.writestr("p/data/x.wrapper_metadata.json", "{}")
            parts.writestr("p/data/x.wrapper_compile_flags.json", json.dumps(FLAGS))
            parts.writestr("p/data/x.wrapper_linker_flags.json", json.dumps(linking))
            parts.write(constants, "p/data/y.weights.o")
        return package

    return packed


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    ran: list[list[str]] = []

    def recorded(command: list[str]) -> None:
        ran.append(command)
        run_compiler(command)

    monkeypatch.setattr(native, "run_compiler", recorded)
    return ran


def of(commands: list[list[str]], name: str) -> list[list[str]]:
    return [command for command in commands if command[-1].endswith(name)]


def test_calls_and_kernels_become_one_library(tmp_path: Path, pack: Callable[[str], Path]) -> None:
    sources = Sources.read(pack(CALLS + KERNELS))
    assert "check_input_0" not in sources.calls
    assert "cpp_fused_1" in sources.kernels
    assert "run(" not in sources.kernels
    library = tmp_path / "out" / "one.so"
    library.parent.mkdir()
    build(sources, library)
    loaded = ctypes.CDLL(str(library))
    loaded.run.restype, loaded.run.argtypes = ctypes.c_float, [ctypes.c_float]
    assert loaded.run(-2.0) == 6.0
    assert ctypes.c_char.in_dll(loaded, "constant").value == b"\x07"
    assert library.with_suffix(".json").read_text() == "operators"
    assert sorted(path.name for path in library.parent.iterdir()) == [
        "headers",
        "one.json",
        "one.so",
    ]


def test_a_program_needs_no_kernels(tmp_path: Path, pack: Callable[[str], Path]) -> None:
    sources = Sources.read(pack('#include <cmath>\nextern "C" {\nint run() { return 5; }\n}\n'))
    assert sources.kernels == ""
    build(sources, tmp_path / "one.so")
    assert ctypes.CDLL(str(tmp_path / "one.so")).run() == 5


def test_kernels_are_not_lost_among_the_calls(pack: Callable[[str], Path]) -> None:
    """Written in another way, they would be compiled as calls are, and take many times as long."""
    with pytest.raises(AssertionError, match="kernels that are declared are there"):
        Sources.read(pack(CALLS + KERNELS.replace("#include <cmath>", "")))


def test_headers_are_read_once(
    tmp_path: Path, pack: Callable[[str], Path], commands: list[list[str]]
) -> None:
    sources = Sources.read(pack(CALLS + KERNELS))
    for name in ("one.so", "two.so"):
        build(sources, tmp_path / name)
    made = [Path(command[-1]) for command in of(commands, ".gch")]
    headers = {one.with_suffix("").read_text(): one for one in made}
    assert len(made) == 2
    for name, includes in (
        ("calls.o", "#include <vector>\n#include <string>\n"),
        ("kernels.o", "#include <cmath>\n"),
    ):
        path = headers[includes].with_suffix("")
        assert [str(path) in command for command in of(commands, name)] == [True, True]
        [compiled, _] = of(commands, name)
        look = compiled[: compiled.index("-c")]
        source = tmp_path / "again.cpp"
        source.write_text(includes)
        told = subprocess.run(
            [*look, "-H", "-S", source, "-o", "-"], capture_output=True, text=True
        )
        assert f"! {headers[includes]}" in told.stderr, "the compiler takes it"


def test_kernels_get_what_torch_gives_them(
    tmp_path: Path, pack: Callable[[str], Path], commands: list[list[str]]
) -> None:
    build(Sources.read(pack(CALLS + KERNELS)), tmp_path / "one.so")
    [kernels], [calls] = of(commands, "kernels.o"), of(commands, "calls.o")
    flags = {"-DFIRST", "-DFACTOR=3", "-fPIC", "-std=c++20", "-ffp-contract=off"}
    assert flags | {"-fno-math-errno", "-O3"} <= set(kernels)
    assert flags | {"-Og"} <= set(calls)
    assert "-O3" not in calls


def test_what_the_compiler_refuses_is_told(tmp_path: Path, pack: Callable[[str], Path]) -> None:
    sources = Sources.read(pack("#define WITHOUT\n" + CALLS + KERNELS))
    with pytest.raises(KernelBuildError, match="it has a flag that it should not"):
        build(sources, tmp_path / "one.so")
    assert [path.name for path in tmp_path.glob("one*")] == []
