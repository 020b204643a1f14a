"""manifest.json is read whole or not at all: unknown, missing and malformed fields by name."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphs.errors import ArtifactError
from graphs.manifest import MANIFEST, Manifest
from tests.artifacts import PLAN, copy_of, eager_artifact, edit

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_of(eager_artifact(), tmp_path / "artifact")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    manifest = eager_artifact().manifest
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest


def test_every_engine_has_its_entry() -> None:
    """Fault D8: the rows of an engine are recorded. Those of an observation include re-run ones."""
    manifest = eager_artifact().manifest
    found = [(entry.kind, entry.batch, entry.rows) for entry in manifest.engines]
    assert found == [
        *(("prefill", 1, rows) for rows in PLAN.prefill),
        *(("decode", batch, width) for batch in PLAN.batches for width in PLAN.widths),
        *(("observe", 1, rows + manifest.depths - 1) for rows in PLAN.observed),
    ]
    assert all(entry.contexts == PLAN.contexts for entry in manifest.engines)
    assert all(entry.tp == 1 and entry.programs for entry in manifest.engines)
    distinct = {entry.programs for entry in manifest.engines}
    assert len(distinct) == len(manifest.engines)


def test_costs_of_every_shape_are_kept() -> None:
    costs = eager_artifact().manifest.costs
    shapes = {f"{batch}x{width}" for batch in PLAN.batches for width in PLAN.widths}
    assert set(costs.verify) == set(costs.draft) == shapes
    assert min(costs.verify.values()) > 0
    assert set(costs.observe) == {str(rows) for rows in PLAN.observed}
    assert len(costs.acceptance) == 3
    assert all(0 < share < 1 for share in costs.acceptance)


FAULTS: dict[str, tuple[Change, str]] = {
    "unknown": (lambda m: m.update(colour="red"), "the field colour is unknown"),
    "missing": (lambda m: m.pop("source"), "the field source is missing"),
    "machine unknown": (lambda m: m["machine"].update(gpu=1), "machine: the field gpu is unknown"),
    "machine missing": (lambda m: m["machine"].pop("isa"), "machine: the field isa is missing"),
    "machine": (lambda m: m.update(machine=[1]), "machine is no object"),
    "plan": (lambda m: m["plan"].update(widths=[4, 1]), r"widths = \[4, 1\]"),
    "plan type": (lambda m: m["plan"].update(widths="14"), "widths is no list"),
    "plan object": (lambda m: m["plan"].update(batches={"a": 1}), "batches is no list"),
    "plan sizes": (lambda m: m["plan"].update(prefill=[16.0]), "prefill is not a whole number"),
    "plan bool": (lambda m: m["plan"].update(batches=[True]), "batches is not a whole number"),
    "source": (lambda m: m.update(source=5), "source is not a string"),
    "model": (lambda m: m.update(model_config=5), "model_config is not a string"),
    "precision": (lambda m: m.update(precision=None), "precision is not a string"),
    "depths": (lambda m: m.update(depths=None), "depths is not a whole number"),
    "engine": (lambda m: m["engines"][0].pop("rows"), "engines: the field rows is missing"),
    "engine type": (lambda m: m.update(engines=[3]), "engines is no object"),
    "engines": (lambda m: m.update(engines=None), "engines is no list"),
    "verify": (lambda m: m["costs"].update(verify=[1]), "verify is no object"),
    "cost": (lambda m: m["costs"]["draft"].update({"1x1": None}), "draft.1x1 is not a number"),
    "nan": (lambda m: m["costs"]["draft"].update({"1x1": math.nan}), "draft.1x1 is not a number"),
    "huge": (lambda m: m["costs"]["draft"].update({"1x1": 10**400}), "draft.1x1 is not a number"),
    "no time": (lambda m: m["costs"]["verify"].update({"1x1": 0}), "a step that takes no time"),
    "negative": (lambda m: m["costs"]["observe"].update({"16": -1}), "observe has negative times"),
    "other plan": (lambda m: m["plan"].update(prefill=[5]), r"costs.observe is of .*, not \['5'\]"),
    "shares": (lambda m: m["costs"].update(acceptance=[0.5, 0.5, 2]), "not 3 shares from 0 to 1"),
    "costs": (lambda m: m["costs"].update(prior=[]), "costs: the field prior is unknown"),
    "files": (lambda m: m.update(files=["a"]), "files is no object"),
    "programs": (lambda m: m.update(programs=["a"]), "programs is no object"),
    "unlisted kernels": (lambda m: m.update(kernels="k.so"), "no sha256 of 'k.so'"),
    "unlisted program": (lambda m: m["programs"].update(a="b.so"), "no sha256 of 'b.so'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_manifest_is_refused_by_field(folder: Path, fault: str) -> None:
    change, said = FAULTS[fault]
    edit(folder, change)
    with pytest.raises(ArtifactError, match=f"is damaged: .*({said})") as caught:
        Manifest.read(folder)
    assert f"run: fourstep build CHECKPOINT --out {folder}" in str(caught.value)


@pytest.mark.parametrize("name", ["../kernels.so", "/etc/passwd", "a/b", "..", ".", ""])
@pytest.mark.parametrize("field", ["files", "kernels", "programs"])
def test_a_name_that_leaves_the_folder_is_refused(folder: Path, field: str, name: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = "0" * 64
        if field == "kernels":
            manifest["kernels"] = name
        if field == "programs":
            manifest["programs"]["key"] = name

    edit(folder, change)
    with pytest.raises(ArtifactError, match="is not the name of a file in the folder"):
        Manifest.read(folder)


@pytest.mark.parametrize("value", [2, 0, "1", None])
def test_another_format_is_refused(folder: Path, value: object) -> None:
    edit(folder, lambda manifest: manifest.update(format=value))
    with pytest.raises(ArtifactError, match=r"reads manifests of format 1 only\..* run: fourstep"):
        Manifest.read(folder)


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_truncated_json_is_refused(folder: Path, share: float) -> None:
    path = folder / MANIFEST
    content = path.read_text().rstrip()
    path.write_text(content[: int(share * len(content))])
    with pytest.raises(ArtifactError, match=r"is damaged: .* run: fourstep build"):
        Manifest.read(folder)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[]", b"3", b"[" * 100_000, json.dumps({"x": 1}).encode()]
)
def test_what_is_no_manifest_is_refused(folder: Path, content: bytes) -> None:
    (folder / MANIFEST).write_bytes(content)
    with pytest.raises(ArtifactError, match=str(folder)):
        Manifest.read(folder)


def test_a_folder_without_manifest_is_no_artifact(tmp_path: Path) -> None:
    """Its content may be anything, so nobody is told to remove it."""
    with pytest.raises(ArtifactError, match="is no artifact: it has no manifest") as caught:
        Manifest.read(tmp_path)
    assert "Remove" not in str(caught.value)
    assert "run: fourstep build CHECKPOINT --out DIR" in str(caught.value)
    with pytest.raises(ArtifactError, match="is no artifact"):
        Manifest.read(tmp_path / "nowhere")
