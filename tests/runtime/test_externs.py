"""How a compiled program calls operators: ours by our own library, and as torch itself would."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from graphs.compile import inductor
from graphs.compile.externs import External, externs
from graphs.compile.inductor import InductorCompiler
from runtime.programs import Programs
from runtime.request import SamplingParams
from tests.runtime.compiled import Request, inductor_artifact, new_engine, programs, run

ASKED = [Request(prompt=tuple(range(5, 45)), params=SamplingParams())]


def test_every_call_of_ours_is_told() -> None:
    """One that is not costs more than a small operator does."""
    told = [call for path in inductor_artifact().programs.values() for call in externs(path)]
    assert {name.removeprefix("fourstep::") for name, *_ in told} >= {
        *("linear", "rms_norm", "route", "routed_experts", "rope_write", "window_attention"),
        *("region_attention", "update_summaries", "sample", "argmax", "count_tokens"),
    }
    assert all(name for name, *_ in told)


def test_torchs_own_way_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def untold(package: Path) -> list[External]:
        return [("", (), 0) for _ in externs(package)]

    ours = programs("compiled")
    assert ours.files is not None
    said = run(new_engine(ours), ASKED)
    monkeypatch.setattr(inductor, "externs", untold)
    isa = inductor_artifact().manifest.machine.isa
    slow = Programs(compiler=InductorCompiler(isa), files=ours.files)
    assert run(new_engine(slow), ASKED) == said


def written(folder: Path, *nodes: dict[str, Any]) -> Path:
    path = folder / "program.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        text = json.dumps({"nodes": [{"name": "buf0", "node": node} for node in nodes]})
        archive.writestr("program/data/a.wrapper.json", text)
    return path


def test_a_call_is_told_whole_or_not_at_all(tmp_path: Path) -> None:
    tensor = {"as_tensor": {"name": "a"}}
    given: list[dict[str, Any]] = [
        tensor,
        {"as_tensors": [tensor] * 3},
        {"as_string": "bf16"},
        {"as_scalar_type": 13},
    ]
    given += [{"as_int": 4}, {"as_float": 0.5}, {"as_bool": True}]
    node: dict[str, Any] = {"target": "fourstep::linear", "inputs": [{"arg": arg} for arg in given]}
    node["outputs"] = [tensor, tensor]
    unknown = {**node, "inputs": [{"arg": {"as_nobody_knows": 1}}]}
    path = written(
        *(tmp_path, node, unknown, {**node, "target": "aten::sort"}),
        {**node, "outputs": [{"as_tensors": [tensor]}]},
    )
    whole = (
        *(("tensor", 1), ("tensors", 3), ("value", "bf16"), ("value", torch.bfloat16)),
        *(("int", 1), ("value", 0.5), ("value", True)),
    )
    nothing = ("", (), 0)
    assert externs(path) == [("fourstep::linear", whole, 2), nothing, nothing, nothing]


def test_a_call_with_other_arguments_than_told_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(package: Path) -> list[External]:
        return [(name, arguments[1:], count) for name, arguments, count in externs(package)]

    monkeypatch.setattr(inductor, "externs", wrong)
    with pytest.raises(RuntimeError, match="arguments are not as they were told"):
        run(new_engine(programs("compiled")), ASKED)
