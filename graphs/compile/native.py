"""Programs as torch writes them in C++, made into libraries.

Knows g++, torch's package of sources, and that it holds two parts: the calls of operators, and
torch's own element-wise kernels. Does not know what a program computes. Nearly all of what a
compiler does with either is to read torch's headers, so they are read once for all programs with
the same flags. Keeps true: kernels get every flag that torch gives them.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from graphs.cache import locked
from graphs.ops.build import run_compiler

STAND_INS = Path(__file__).parent / "include"  # for headers of the system
# The calls: with less than this they take a tenth of a small model's steps, and no less time to
# compile; with more, half as long again to compile.
_CALLS, _KERNELS = "-Og", "-O3"
_INCLUDE = re.compile(r"^#include <.+>$", re.MULTILINE)
_KERNEL = re.compile(r'^#include <.+>\nextern "C" +void +\w+\([^;{]*\{', re.MULTILINE)
_DECLARED = re.compile(r'^extern "C" +void +\w+\([^;{]*;', re.MULTILINE)
# Run only where an environment variable asks for them, and most of the text: what they would check
# is in the program's key.
_CHECKS = re.compile(
    r"AOTI_NOINLINE static void check_input_\d+\(.*?(?=static bool _check_aoti_runtime)|"
    r"^ *check_input_\d+\(input_handles\);$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """A program. `operators` is what torch's loader reads of the operators that it calls."""

    calls: str
    kernels: str
    compiling: Mapping[str, Any]
    linking: Mapping[str, Any]
    constants: bytes  # an object file
    operators: bytes

    @classmethod
    def read(cls, package: Path) -> "Sources":
        """Of a package that torch has not compiled (its option package_cpp_only)."""
        with ZipFile(package) as parts:

            def part(end: str) -> bytes:
                [name] = [name for name in parts.namelist() if name.endswith(end)]
                return parts.read(name)

            calls, kernels = _split(part(".wrapper.cpp").decode())
            return cls(
                calls=_CHECKS.sub("", calls),
                kernels=kernels,
                compiling=json.loads(part("_compile_flags.json")),
                linking=json.loads(part("_linker_flags.json")),
                constants=part(".weights.o"),
                operators=part(".wrapper.json"),
            )


def _split(source: str) -> tuple[str, str]:
    """The calls, which declare the kernels, and the kernels behind them."""
    found = _KERNEL.search(source)
    at = found.start() if found else len(source)
    assert bool(found) == bool(_DECLARED.search(source)), "kernels that are declared are there"
    return source[:at], source[at:]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Code, and the command that compiles it but for what is read and written."""

    name: str
    code: str
    command: Sequence[str]

    def precompile(self, folder: Path) -> Path:
        """A header of all that the code includes, named by what its compiled form depends on, and
        that form beside it, where compilers look for it."""
        includes = "\n".join(dict.fromkeys(_INCLUDE.findall(self.code))) + "\n"
        made_of = "\0".join((includes, *self.command))
        header = folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.h"
        compiled = header.with_suffix(".h.gch")
        if not compiled.exists():
            header.write_text(includes, encoding="utf-8")
            run_compiler([*self.command, "-x", "c++-header", str(header), "-o", str(compiled)])
        return header


def build(sources: Sources, library: Path) -> None:
    """Write `library`, and its operators beside it, where torch looks for them.

    Precompiled headers stay in a folder beside it. Raises KernelBuildError.
    """
    base = _command(sources.compiling)
    parts = [_Part(name="calls", code=sources.calls, command=(*base, _CALLS, "-w"))]
    if sources.kernels:
        parts.append(_Part(name="kernels", code=sources.kernels, command=(*base, _KERNELS, "-w")))
    kept = library.parent / "headers"
    with locked(kept / ".lock"), ThreadPoolExecutor() as pool:  # others wait for the same ones
        headers = list(pool.map(lambda part: part.precompile(kept), parts))
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        folder = Path(scratch)
        for part, header in zip(parts, headers, strict=True):
            source = folder / f"{part.name}.cpp"
            source.write_text(part.code, encoding="utf-8")
            read = ("-include", str(header), "-c", str(source))
            run_compiler([*part.command, *read, "-o", str(source.with_suffix(".o"))])
        (folder / "constants.o").write_bytes(sources.constants)
        objects = sorted(map(str, folder.glob("*.o")))
        linked = [*_command(sources.linking), *objects, *_libraries(sources.linking)]
        run_compiler([*linked, "-o", str(library)])
    library.with_suffix(".json").write_bytes(sources.operators)


def _command(flags: Mapping[str, Any]) -> list[str]:
    """The compiler and its options but the level of optimisation."""
    options = [f"-{flag}" for flag in flags["cflags"] if not re.fullmatch(r"O\w", flag)]
    return [
        flags["compiler"],
        *(f"-D{name.strip()}" for name in flags["definitions"]),
        *(f"-I{path}" for path in (STAND_INS, *flags["include_dirs"])),
        *options,
        *" ".join(flags["passthrough_args"]).split(),
    ]


def _libraries(flags: Mapping[str, Any]) -> list[str]:
    return [
        *(f"-{flag}" for flag in flags["ldflags"]),
        *(f"-L{path}" for path in flags["libraries_dirs"]),
        *(f"-l{name}" for name in flags["libraries"]),
    ]
