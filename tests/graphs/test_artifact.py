"""What makes an artifact refuse (faults C4, C5), and that each refusal says what to run.

A damaged file, another machine, toolchain, source, model, layout or precision: one test each, on
copies of a small artifact of the golden checkpoint.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphs import artifact as artifact_module
from graphs.artifact import Artifact
from graphs.digests import file_digest
from graphs.errors import ArtifactError
from graphs.manifest import MANIFEST
from tests.artifacts import PLAN, copy_of, eager_artifact, edit
from tests.graphs.whole import golden_model

PROGRAM = "layer-0123.so"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy with one program more, of made-up bytes."""
    made = copy_of(eager_artifact(), tmp_path / "artifact")
    (made / PROGRAM).write_bytes(bytes(range(256)))

    def add(manifest: dict[str, Any]) -> None:
        manifest["files"][PROGRAM] = file_digest(made / PROGRAM)
        manifest["programs"]["layer-0123"] = PROGRAM

    edit(made, add)
    return made


def refusal(folder: Path, **opened: Any) -> str:
    """Opened and held against the golden model: what the error says."""
    model = golden_model()
    with pytest.raises(ArtifactError) as caught:
        Artifact.open(folder, **opened).require(model.config, model.weights, "fp32")
    return str(caught.value)


def test_an_artifact_that_fits_is_taken(folder: Path) -> None:
    model, artifact = golden_model(), Artifact.open(folder)
    artifact.require(model.config, model.weights, "fp32")
    artifact.require_machine()
    assert artifact.programs == {"layer-0123": folder / PROGRAM}
    assert artifact.kernels.parent == folder
    assert artifact.manifest.plan == PLAN


def test_it_holds_no_weight() -> None:
    """Kernels and a manifest; the checkpoint's weights are larger than the manifest."""
    names = sorted(path.name for path in eager_artifact().folder.iterdir())
    assert names == [eager_artifact().manifest.kernels, MANIFEST]


MACHINE = {
    "torch": "2.12.0+cpu",
    "isa": "avx9",
    "device": "Another CPU @ 1 GHz",
    "arch": "sm_90",
}


@pytest.mark.parametrize("field", MACHINE)
def test_another_machine_is_refused(folder: Path, field: str) -> None:
    """Fault C5: a package for another processor or torch would load and run."""
    edit(folder, lambda manifest: manifest["machine"].update({field: MACHINE[field]}))
    said = refusal(folder)
    assert f"{field}: " in said
    assert f"{MACHINE[field]} there" in said
    assert f"run: fourstep build CHECKPOINT --out {folder}" in said
    with pytest.raises(ArtifactError, match=f"{field}: .* there"):
        Artifact.open(folder).require_machine()


def test_a_lower_instruction_set_of_this_machine_is_taken(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["machine"].update(isa="scalar"))
    Artifact.open(folder).require_machine()


# What makes another of the same shapes.
AGAIN = "--widths 1,4 --batches 1,4 --contexts 256 --prefill 16 --precision fp32"


@pytest.mark.parametrize(
    ("field", "name", "advice"),
    [
        (
            "source",
            "source",
            "Remove that folder and run: fourstep build CHECKPOINT --out {folder}",
        ),
        ("model_config", "model config", "Name the artifact that was built for this checkpoint"),
        ("weight_layout", "weight layout", "Name the artifact that was built for this checkpoint"),
        ("precision", "precision", "Use --precision 0123456789abcdef"),
    ],
)
def test_what_it_was_built_from_is_compared(
    folder: Path, field: str, name: str, advice: str
) -> None:
    """Fault C4. What is right for something else is not to be removed."""
    edit(folder, lambda manifest: manifest.update({field: "0123456789abcdef" * 4}))
    said = refusal(folder)
    assert f"{name}: " in said
    assert "0123456789abcdef there" in said
    assert advice.format(folder=folder) in said
    if field == "source":
        assert said.endswith(AGAIN)
    else:
        assert "Remove" not in said
        assert said.endswith(
            f", or run: fourstep build CHECKPOINT --out DIR {AGAIN}, with a new folder"
        )


def test_all_differences_are_named_at_once(folder: Path) -> None:
    edit(folder, lambda manifest: manifest["machine"].update(torch="1.0", arch="arm"))
    edit(folder, lambda manifest: manifest.update(source="0", precision="bf16"))
    said = refusal(folder)
    for part in ("torch: ", "arch: ", "source: ", "precision: fp32 here, bf16 there"):
        assert part in said


def test_another_model_is_refused() -> None:
    artifact, model = eager_artifact(), golden_model()
    other = dataclasses.replace(model.config, rms_eps=1e-3)
    with pytest.raises(ArtifactError, match="does not fit: model config: "):
        artifact.require(other, model.weights, "fp32")
    packed = golden_model("nvfp4-packed")
    with pytest.raises(ArtifactError, match="weight layout: "):
        artifact.require(model.config, packed.weights, "fp32")
    without = dataclasses.replace(model.weights, mtp=())
    with pytest.raises(ArtifactError, match="does not fit: weight layout: "):
        artifact.require(model.config, without, "fp32")
    with pytest.raises(ArtifactError, match=r"precision: bf16 here.* Use --precision fp32, or "):
        artifact.require(model.config, model.weights, "bf16")


def test_edited_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_module, "source_digest", lambda: "edited")
    with pytest.raises(ArtifactError, match="does not fit: source: edited here"):
        eager_artifact().require_machine()


@pytest.mark.parametrize("place", [0, 0.5, 1])
@pytest.mark.parametrize("which", [PROGRAM, "kernels"])
def test_a_flipped_bit_is_seen(folder: Path, which: str, place: float) -> None:
    path = Artifact.open(folder).kernels if which == "kernels" else folder / which
    content = bytearray(path.read_bytes())
    content[round(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)
    said = refusal(folder)
    assert f"{path.name} is damaged" in said
    assert f"run: fourstep build CHECKPOINT --out {folder}" in said


@pytest.mark.parametrize("which", [PROGRAM, "kernels"])
def test_a_missing_or_shortened_file_is_named(folder: Path, which: str) -> None:
    path = Artifact.open(folder).kernels if which == "kernels" else folder / which
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path.name} is damaged" in refusal(folder)
    path.unlink()
    said = refusal(folder)
    assert f"{path.name} is missing" in said
    assert f"run: fourstep build CHECKPOINT --out {folder}" in said
    path.mkdir()
    assert f"{path.name} is missing" in refusal(folder)


def test_a_pin_covers_every_byte(folder: Path) -> None:
    pin = Artifact.open(folder).digest
    assert pin == file_digest(folder / MANIFEST)
    assert Artifact.open(folder, sha256=pin.upper()).digest == pin
    said = refusal(folder, sha256="0" * 64)
    assert f"has sha256 {pin}, pinned was {'0' * 64}" in said
    assert f"run: fourstep verify {folder}" in said
    # A program and its entry exchanged together: consistent, and still not what was pinned.
    (folder / PROGRAM).write_bytes(b"other")
    edit(folder, lambda m: m["files"].update({PROGRAM: file_digest(folder / PROGRAM)}))
    Artifact.open(folder)
    assert "pinned was" in refusal(folder, sha256=pin)
