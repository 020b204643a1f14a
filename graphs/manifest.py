"""manifest.json: what an artifact is, field by field.

Knows its JSON. Does not know files' contents or this machine. Keeps true: an unknown or missing
field is an error, so that another version's manifest is never half understood.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphs.errors import ArtifactError
from graphs.machine import Machine
from graphs.plan import EnginePlan

MANIFEST = "manifest.json"
FORMAT = 1
BUILD = "fourstep build CHECKPOINT --out"


@dataclass(frozen=True, kw_only=True)
class EngineEntry:
    """One engine: `kind` decode, prefill or observe; `rows` a slot verified or run at once."""

    kind: str
    rows: int
    batch: int
    tp: int
    contexts: tuple[int, ...]
    programs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Microseconds on this SKU; empty where the model did not fit the machine that built.

    `verify` and `draft` (behind it) by "BATCHxWIDTH", `observe` by rows; `acceptance` is the prior
    of each draft position, from text the model wrote.
    """

    verify: Mapping[str, float]
    draft: Mapping[str, float]
    observe: Mapping[str, float]
    acceptance: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """files: sha256 of every other file of the folder, by name."""

    format: int
    model_config: str
    weight_layout: str
    source: str
    precision: str
    compiler: str
    depths: int
    machine: Machine
    plan: EnginePlan
    engines: tuple[EngineEntry, ...]
    programs: Mapping[str, str]
    kernels: str
    costs: Costs
    files: Mapping[str, str]

    def write(self, folder: Path) -> None:
        text = json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Raises ArtifactError naming the folder and what is wrong with its manifest."""
        path = folder / MANIFEST
        if not path.is_file():
            raise ArtifactError(
                f"{folder} is no artifact: it has no {MANIFEST}. "
                f"To make one, run: {BUILD} DIR, with a new folder"
            )
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or found.get("format") != FORMAT:
                raise ArtifactError(
                    f"{path}: this version reads manifests of format {FORMAT} only. "
                    f"{rebuild(folder)}"
                )
            manifest = cls._parse(found)
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(f"{path} is damaged: {error}. {rebuild(folder)}") from error
        return manifest

    @classmethod
    def _parse(cls, found: Mapping[str, Any]) -> "Manifest":
        """Raises ValueError naming the field; TypeError or AttributeError for a value's type."""
        _check_fields(cls, found, MANIFEST)
        parts: dict[str, Any] = {
            "machine": _part(Machine, found["machine"], "machine"),
            "plan": _part(EnginePlan, found["plan"], "plan"),
            "engines": tuple(_part(EngineEntry, e, "engines") for e in found["engines"]),
            "costs": _part(Costs, found["costs"], "costs"),
        }
        manifest = cls(**{**found, **parts})
        for field in ("files", "programs"):
            if not isinstance(found[field], dict):
                raise ValueError(f"{field} is no object")
        for name in manifest.files:
            if name in ("", ".", "..") or "/" in name:
                raise ValueError(f"{name!r} is not the name of a file in the folder")
        for name in (manifest.kernels, *manifest.programs.values()):
            if name not in manifest.files:
                raise ValueError(f"it has no sha256 of {name!r}")
        return manifest


def rebuild(folder: Path, *options: str) -> str:
    """What to tell the user about an artifact that cannot be used."""
    return f"Remove that folder and run: {' '.join((BUILD, str(folder), *options))}"


def _part(kind: type[Any], found: Any, where: str) -> Any:
    _check_fields(kind, found, where)
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})


def _check_fields(kind: type[Any], found: Any, where: str) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{where} is no object")
    for name in sorted({field.name for field in dataclasses.fields(kind)} ^ set(found)):
        raise ValueError(
            f"{where}: the field {name} is {'unknown' if name in found else 'missing'}"
        )
