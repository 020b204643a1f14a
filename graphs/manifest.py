"""manifest.json: what an artifact is, field by field.

Knows its JSON. Does not know files' contents or this machine. Keeps true: an unknown or missing
field is an error, so that another version's manifest is never half understood.
"""

import dataclasses
import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from graphs.errors import ArtifactError
from graphs.machine import Machine
from graphs.plan import EnginePlan
from graphs.typed_json import read_typed

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

    def check(self, plan: EnginePlan, depths: int) -> None:
        """Whether every engine of the plan that is timed has a cost. Raises ValueError."""
        if not self.verify:
            return
        drafts = min(depths, plan.widths[-1] - 1)
        steps = {f"{batch}x{width}" for batch in plan.batches for width in plan.widths_for(drafts)}
        _check_times("verify", self.verify, steps)
        _check_times("draft", self.draft, steps if drafts else set())
        _check_times("observe", self.observe, set(map(str, plan.observed)) if drafts else set())
        if min(self.verify.values()) == 0:
            raise ValueError("costs.verify has a step that takes no time")
        if len(self.acceptance) != drafts or not all(0 <= share <= 1 for share in self.acceptance):
            raise ValueError(f"costs.acceptance is not {drafts} shares from 0 to 1")


def _check_times(name: str, times: Mapping[str, float], wanted: Set[str]) -> None:
    if set(times) != wanted:
        raise ValueError(f"costs.{name} is of {sorted(times)}, not {sorted(wanted)}")
    if min(times.values(), default=0) < 0:
        raise ValueError(f"costs.{name} has negative times")


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
            return read_typed(cls, found, MANIFEST)
        except (RecursionError, ValueError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(f"{path} is damaged: {error}. {rebuild(folder)}") from error

    def __post_init__(self) -> None:
        """Raises ValueError saying which fields contradict each other."""
        for name in self.files:
            if name in ("", ".", "..") or "/" in name:
                raise ValueError(f"{name!r} is not the name of a file in the folder")
        for name in (self.kernels, *self.programs.values()):
            if name not in self.files:
                raise ValueError(f"it has no sha256 of {name!r}")
        self.costs.check(self.plan, self.depths)


def rebuild(folder: Path, *options: str) -> str:
    """What to tell the user about an artifact that cannot be used."""
    return f"Remove that folder and run: {' '.join((BUILD, str(folder), *options))}"
