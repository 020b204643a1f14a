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
            raise ArtifactError(f"{folder} is no artifact: it has no {MANIFEST}")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or found.get("format") != FORMAT:
                raise ArtifactError(f"{path}: this version reads manifests of format {FORMAT} only")
            parts: dict[str, Any] = {
                "machine": Machine(**found["machine"]),
                "plan": EnginePlan(**_tuples(found["plan"])),
                "engines": tuple(EngineEntry(**_tuples(e)) for e in found["engines"]),
                "costs": Costs(**_tuples(found["costs"])),
            }
            manifest = cls(**{**found, **parts})
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(f"{path} is damaged: {error}") from error
        names = (manifest.kernels, *manifest.programs.values())
        if unlisted := [name for name in names if name not in manifest.files or "/" in name]:
            raise ArtifactError(f"{path} is damaged: it has no sha256 of {unlisted[0]}")
        return manifest


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
