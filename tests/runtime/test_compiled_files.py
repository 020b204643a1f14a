"""The files of compiled engines: no weight is in them, and they are run where they lie."""

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor
from torch._C._aoti import AOTIModelContainerRunnerCpu
from torch.utils._pytree import tree_leaves

from graphs.chain import Call
from graphs.compile.compiler import Step
from graphs.compile.inductor import InductorCompiler
from runtime.request import SamplingParams
from tests.graphs.whole import golden_model
from tests.runtime.compiled import inductor_artifact, new_engine, programs, with_compiler
from tests.sources import ROOT, environment


def addresses(tree: object) -> set[int]:
    leaves = tree_leaves(tree)
    return {leaf.data_ptr() for leaf in leaves if isinstance(leaf, Tensor) and leaf.numel()}


def test_engines_of_one_model_share_its_weights() -> None:
    """The tensors that programs are bound to are the model's own; the programs hold none."""
    weights = addresses(golden_model().weights)
    bound: list[set[int]] = []

    class Recording(InductorCompiler):
        def load(self, call: Call, program: Path | None) -> Step:
            bound[-1] |= {tensor.data_ptr() for tensor in call.tensors}
            return super().load(call, program)

    made = []
    for _ in range(3):
        bound.append(set())
        made.append(with_compiler(Recording(inductor_artifact().manifest.machine.isa)))
    assert all(weights & pointers == weights & bound[0] for pointers in bound)
    assert len(weights & bound[0]) > 0.9 * len(weights)
    states = [addresses(one.state) for one in made]
    assert not states[0] & states[1]
    assert states[0] <= bound[0]
    for path in inductor_artifact().programs.values():
        runner = AOTIModelContainerRunnerCpu(str(path), 1)
        held = runner.extract_constants_map(False).values()
        assert sum(tensor.nbytes for tensor in held) < 200, path.name


def test_an_artifact_may_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its programs then have names alone, which the system looks for elsewhere."""
    artifact = inductor_artifact()
    monkeypatch.chdir(artifact.folder)
    here = {key: Path(path.name) for key, path in artifact.programs.items()}
    made = new_engine(dataclasses.replace(programs("compiled"), files=here))
    assert made.prefill([5, 6, 7], 0, SamplingParams()).tokens


KILLED = """
import os, signal
from pathlib import Path
from tests.runtime.compiled import new_engine, programs

engine = new_engine(programs("compiled"))
print(Path("/proc/self/maps").read_text(), end="", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_programs_are_run_where_they_lie(tmp_path: Path) -> None:
    """However many layers call one, its code is in memory once, and nothing stays on the disk of a
    process that is killed."""
    folder = inductor_artifact().folder.resolve()
    run = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=ROOT,
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert run.returncode == -signal.SIGKILL
    mapped = [line.split() for line in run.stdout.splitlines()]
    code = [Path(line[5]) for line in mapped if len(line) > 5 and "x" in line[1]]
    assert sorted(path.name for path in code if path.parent == folder) == sorted(
        path.name for path in folder.glob("*.so")
    )
    assert list(tmp_path.iterdir()) == []
