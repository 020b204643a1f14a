"""Compiles the CPU kernels into one shared object and loads it.

Knows compilers and flags. Does not know what the kernels compute. A file in cpu/kernels is compiled
once per instruction set, one in cpu/ once. Keeps true: the file's name is the digest of all that
made it, so an edited source or another torch never meets an old library; one process loads one
library.
"""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from graphs.cache import Waiting, locked
from graphs.digests import file_digest

SOURCES = Path(__file__).with_name("cpu")
ISAS = ("scalar", "avx2", "avx512")
_FLAGS = (
    *("-O3", "-std=c++20", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden"),
    # gcc 12 finds those two in its own intrinsics.
    *("-Wall", "-Wno-uninitialized", "-Wno-maybe-uninitialized"),
)
_ISA_FLAGS = {
    "scalar": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vbmi", "-mavx512bf16"),
        *("-mfma", "-mprefer-vector-width=512"),
    ),
}
_loaded: list[Path] = []


class KernelBuildError(RuntimeError):
    """The C++ compiler is missing or refused a source; holds its output."""


def source_digest() -> str:
    """sha256 of every kernel source, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix in (".cpp", ".h"):
            digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build_kernels(folder: Path, *, jobs: int = 2, waiting: Waiting | None = None) -> Path:
    """The shared object in `folder`, compiled unless it is there already.

    Objects are kept beside it, so that an edit compiles what it touches. `waiting` hears of the
    lock of another process that builds. Raises KernelBuildError.
    """
    compiler = _compiler()
    key = hashlib.sha256(
        "\n".join(
            (source_digest(), _version(compiler), torch.__version__, str(_FLAGS), str(_ISA_FLAGS))
        ).encode()
    ).hexdigest()
    target = folder / f"fourstep-kernels-{key[:16]}.so"
    if not _is_whole(target):
        with locked(folder / ".lock", waiting):
            if not _is_whole(target):
                _build(compiler, target, jobs)
                _seal(target).write_text(file_digest(target))
    return target


def _is_whole(library: Path) -> bool:
    """Loading one that was cut short would end the process."""
    seal = _seal(library)
    return library.exists() and seal.exists() and seal.read_text() == file_digest(library)


def _seal(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _build(compiler: str, target: Path, jobs: int) -> None:
    """Compile what is not among the kept objects, and link."""
    objects = target.parent / "objects"
    objects.mkdir(exist_ok=True)
    commands = [_keyed(command, objects) for command in _compilations(compiler)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run_compiler, [c for c in commands if not Path(c[-1]).exists()]))
    torch_libraries = Path(torch.__file__).parent / "lib"
    link = [compiler, "-shared", *(c[-1] for c in commands), f"-L{torch_libraries}", *_LIBRARIES]
    run_compiler([*link, "-Wl,--no-undefined", "-o", str(target)])


def _keyed(command: list[str], objects: Path) -> list[str]:
    """The command with its output: a file named by all that the object is made of."""
    source = Path(command[-1])
    digest = hashlib.sha256("\n".join((*command, torch.__version__, _version(command[0]))).encode())
    for path in sorted(_included(source)):
        digest.update(path.read_bytes() + b"\0")
    return [*command, "-o", str(objects / f"{source.stem}-{digest.hexdigest()[:16]}.o")]


def _included(source: Path) -> set[Path]:
    """A source and, recursively, the headers of ours that it includes."""
    found, waiting = {source}, [source]
    while waiting:
        for name in re.findall(r'#include "([^"]+)"', waiting.pop().read_text()):
            beside = (source.parent / name, SOURCES / name)
            path = next(path for path in beside if path.exists())
            if path not in found:
                found.add(path)
                waiting.append(path)
    return found


def load_kernels(path: Path) -> None:
    """Replace the references by the kernels for CPU tensors, in this process, for good.

    A copy of the library that is loaded already, which its name tells, is not loaded again.
    """
    path = path.resolve()
    if _loaded and _loaded[0].name == path.name:
        return
    assert not _loaded, f"{_loaded[0]} is loaded already, so {path} cannot be"
    torch.ops.load_library(path)
    _loaded.append(path)


def kernels_loaded() -> bool:
    return bool(_loaded)


def set_threads(threads: int) -> None:
    """Threads the kernels may use, the caller's included."""
    _library().fourstep_set_threads(threads)


def set_isa(name: str) -> None:
    """Use a lower instruction set than the machine's best. Raises ValueError if it lacks it."""
    if not _library().fourstep_set_isa(ISAS.index(name)):
        raise ValueError(f"this machine has no {name}")


def current_isa() -> str:
    return ISAS[_library().fourstep_isa()]


def dot_speed(rows: int, width: int, regions: int) -> float:
    """Dot products a second of `width` elements in the kernels' own arithmetic, as many as scoring
    `regions` regions for `rows` heads takes, with all operands in the cache."""
    dot = _library().fourstep_dot_seconds
    dot.restype, dot.argtypes = ctypes.c_double, (ctypes.c_int64,) * 3
    return rows * regions / dot(rows, width, regions)


_LIBRARIES = ("-ltorch", "-ltorch_cpu", "-lc10", "-lpthread")


def _library() -> ctypes.CDLL:
    assert _loaded, "the kernels are not loaded"
    return ctypes.CDLL(str(_loaded[0]))


def _compiler() -> str:
    for name in ("g++", "c++", "clang++"):
        if found := shutil.which(name):
            return found
    raise KernelBuildError(
        "building kernels and engines needs a C++ compiler (g++ or clang++), and none is installed"
    )


@cache
def _version(compiler: str) -> str:
    return subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]


def _compilations(compiler: str) -> Iterator[list[str]]:
    """One command an object, without its output; those with torch's headers, the slow ones,
    first."""
    from torch.utils.cpp_extension import include_paths

    includes = [f"-I{SOURCES}", *(f"-isystem{path}" for path in include_paths())]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    base = [compiler, *_FLAGS, abi, *includes]
    for source in sorted(SOURCES.glob("*.cpp")):
        yield [*base, "-O1", "-c", str(source)]
    x86 = platform.machine() in ("x86_64", "AMD64")
    for source in sorted((SOURCES / "kernels").glob("*.cpp")):
        for isa in ISAS if x86 else ISAS[:1]:
            yield [*base, "-O3", f"-DFS_ISA={isa}", *_ISA_FLAGS[isa], "-c", str(source)]


def run_compiler(command: Sequence[str]) -> None:
    """The output, which the command names last, appears whole or not at all. Raises
    KernelBuildError."""
    *rest, final = command
    partial = Path(f"{final}.partial")
    english = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run([*rest, str(partial)], capture_output=True, text=True, env=english)
        if done.returncode:
            raise KernelBuildError(f"{' '.join(command)}\n{done.stderr}")
        partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)
