"""Builds llama.cpp from the source that llama-cpp-python carries, once, under build/peers.

Knows pip, cmake and the two programs that are needed. Keeps true: a build that was interrupted
starts again; one that is there is used as it is, named by the version it came from.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

VERSION = "0.3.36"
PROGRAMS = ("llama-bench", "llama-server")
# One static program each, native instructions, OpenMP; nothing that is not measured.
FLAGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "GGML_OPENMP": "ON",
    "GGML_CCACHE": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}


def llama_programs(folder: Path, say: Callable[[str], None]) -> dict[str, Path]:
    """Program name -> path, built in FOLDER unless they are there (a quarter of an hour)."""
    home = folder / f"llama-cpp-python-{VERSION}"
    found = {name: home / "bin" / name for name in PROGRAMS}
    if all(path.is_file() for path in found.values()):
        return found
    home.mkdir(parents=True, exist_ok=True)
    say(f"downloading llama-cpp-python {VERSION}")
    source = _source(home)
    say("building llama.cpp (about a quarter of an hour, once)")
    tool, build = _tool("cmake"), home / "build"
    flags = [f"-D{name}={value}" for name, value in FLAGS.items()]
    _run([tool, "-S", str(source), "-B", str(build), "-G", "Ninja", *flags])
    _run([tool, "--build", str(build), "--target", *PROGRAMS])
    (home / "bin").mkdir(exist_ok=True)
    for name, path in found.items():
        partial = path.with_suffix(".partial")
        shutil.copy2(build / "bin" / name, partial)
        partial.rename(path)
    return found


def _source(home: Path) -> Path:
    """The llama.cpp tree inside the source distribution."""
    requirement = f"llama-cpp-python=={VERSION}"
    options = ["--no-binary", ":all:", "--no-deps", "--dest", str(home)]
    _run([sys.executable, "-m", "pip", "download", "--quiet", *options, requirement])
    name = f"llama_cpp_python-{VERSION}"
    with tarfile.open(home / f"{name}.tar.gz") as archive:
        archive.extractall(home, filter="data")
    return home / name / "vendor" / "llama.cpp"


def _tool(name: str) -> str:
    """A program of this environment, or else the system's."""
    beside = str(Path(sys.executable).parent)
    path = shutil.which(name, path=os.pathsep.join((beside, os.environ.get("PATH", ""))))
    if path is None:
        raise RuntimeError(f"{name} is missing: pip install -e '.[peers]'")
    return path


def _run(command: Sequence[str]) -> None:
    """Quietly; what the command wrote is shown when it fails."""
    # Ninja is found by cmake on the path.
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join((beside, os.environ.get("PATH", "")))
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
