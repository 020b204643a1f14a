"""The cache of artifacts: what gets a folder of its own, and processes that build at once.

Processes share a cache folder of the test with the user's kernels in it, so that nothing is
compiled twice. Keeps true: of two that need one artifact one builds, and no scratch is left.
"""

import dataclasses
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from graphs.artifact import Artifact
from graphs.cache import cache_folder, locked
from graphs.errors import ArtifactError
from graphs.manifest import MANIFEST
from graphs.ops.build import build_kernels
from graphs.plan import EnginePlan
from runtime import store
from runtime.build import BuildOptions
from runtime.store import cache_size, cached_folder, find_or_build
from tests.artifacts import options
from tests.graphs.whole import golden_model
from tests.sources import ROOT, environment

# Waits for a line, so that two start together; says what it built and opened.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a shell's foreground
import json, sys
from runtime.store import find_or_build
from tests.artifacts import options
from tests.graphs.whole import golden_model
model = golden_model()
print("ready", flush=True)
sys.stdin.readline()
said = []
def progress(what, done, total):
    if not total:  # that it waits
        return
    if not said:
        print("building", flush=True)
    said.append(what)
artifact = find_or_build(model.config, model.weights, options(), progress=progress)
print(json.dumps({"digest": artifact.digest, "built": bool(said)}))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of artifacts."""
    build_kernels(cache_folder() / "kernels")
    made = tmp_path / "cache" / "fourstep"
    made.mkdir(parents=True)
    (made / "kernels").symlink_to(cache_folder() / "kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def started() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def folder() -> Path:
    model = golden_model()
    return cached_folder(model.config, model.weights, options())


def names(cache: Path) -> set[str]:
    return {path.name for path in (cache / "artifacts").iterdir()}


def test_of_two_processes_one_builds_and_both_use_it(cache: Path) -> None:
    processes = [started(), started()]
    for process in processes:
        go(process)
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    results = [json.loads(text.splitlines()[-1]) for text in said]
    assert sorted(result["built"] for result in results) == [False, True]
    assert results[0]["digest"] == results[1]["digest"] == Artifact.open(folder()).digest
    assert names(cache) == {folder().name, f"{folder().name}.lock"}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_is_stopped_is_no_artifact(cache: Path, how: signal.Signals) -> None:
    """An interrupt leaves nothing. What a killed one leaves goes with the next build."""
    process = started()
    go(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    process.send_signal(how)
    process.communicate()
    assert process.returncode != 0
    assert folder().name not in names(cache)
    if how == signal.SIGINT:
        assert names(cache) == {f"{folder().name}.lock"}
    else:
        assert len(names(cache)) == 3
    model = golden_model()
    find_or_build(model.config, model.weights, options())
    assert names(cache) == {folder().name, f"{folder().name}.lock"}
    assert cache_size() == (1, sum(path.stat().st_size for path in folder().iterdir()))


def test_who_waits_for_another_build_says_so(cache: Path) -> None:
    model, said = golden_model(), []
    told = threading.Event()

    def progress(what: str, _done: int, total: int) -> None:
        said.append((what, total))
        told.set()

    lock = folder().with_suffix(".lock")
    with ThreadPoolExecutor(1) as pool:
        with locked(lock):
            built = pool.submit(
                find_or_build, model.config, model.weights, options(), progress=progress
            )
            assert told.wait(120)
        assert built.result().folder == folder()
    assert said[0] == (f"waiting for another process that builds these engines ({lock})", 0)


def test_an_artifact_is_built_once(cache: Path) -> None:
    model, said = golden_model(), []

    def progress(what: str, _done: int, _total: int) -> None:
        said.append(what)

    first = find_or_build(model.config, model.weights, options(), progress=progress)
    assert said[0] == "compiling kernels and programs"
    said.clear()
    again = find_or_build(model.config, model.weights, options(), progress=progress)
    assert (again.digest, again.folder, said) == (first.digest, first.folder, [])


def test_a_damaged_artifact_in_the_cache_is_refused(cache: Path) -> None:
    """Not built over: somebody should know."""
    folder().mkdir(parents=True)
    model = golden_model()
    with pytest.raises(ArtifactError, match="is no artifact"):
        find_or_build(model.config, model.weights, options())
    (folder() / MANIFEST).write_text("{")
    with pytest.raises(ArtifactError, match=r"is damaged: .* run: fourstep build CHECKPOINT --out"):
        find_or_build(model.config, model.weights, options())


def test_whatever_an_artifact_depends_on_gives_another_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault C4."""
    model, packed, asked = golden_model(), golden_model("nvfp4-packed"), options()

    def changed(**fields: object) -> BuildOptions:
        return dataclasses.replace(asked, **fields)

    machine = asked.machine
    others = [
        changed(plan=EnginePlan(widths=(1,))),
        changed(precision="bf16"),
        changed(compiler="inductor"),
        changed(machine=dataclasses.replace(machine, isa="scalar")),
        changed(machine=dataclasses.replace(machine, torch="0")),
        changed(machine=dataclasses.replace(machine, device="another")),
        changed(machine=dataclasses.replace(machine, arch="another")),
    ]
    found = [cached_folder(model.config, model.weights, other) for other in (asked, *others)]
    found.append(cached_folder(model.config, packed.weights, asked))
    config = dataclasses.replace(model.config, rms_eps=1e-3)
    found.append(cached_folder(config, model.weights, asked))
    assert cached_folder(model.config, model.weights, changed(jobs=1)) == found[0]
    monkeypatch.setattr(store, "source_digest", lambda: "edited")
    found.append(cached_folder(model.config, model.weights, asked))
    assert len(set(found)) == len(found)
    assert {path.parent for path in found} == {cache / "artifacts"}


def test_a_script_that_builds_wherever_it_is_imported_is_told(cache: Path, tmp_path: Path) -> None:
    """A worker imports it, as multiprocessing does, and would wait for its own builder."""
    script = tmp_path / "script.py"
    script.write_text(
        "from runtime.store import find_or_build\n"
        "from tests.artifacts import options\n"
        "from tests.graphs.whole import golden_model\n"
        "model = golden_model()\n"
        "find_or_build(model.config, model.weights, options('inductor'))\n"
    )
    command, where = [sys.executable, script], environment() | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=where, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert "if __name__ == '__main__':" in done.stderr
    assert {name for name in names(cache) if not name.endswith(".lock")} == set()
