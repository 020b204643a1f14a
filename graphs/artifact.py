"""Artifacts: a folder of compiled programs for one model config on one SKU.

Knows the files and the manifest. Does not know how programs are compiled (compile/) or run. Keeps
true: an artifact is used only after every digest and every field agreed; a difference is a refusal
that names it and the command that builds anew. Loading runs native code, so the manifest's own
digest can be pinned.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphs.config import ModelConfig
from graphs.digests import file_digest, layout_digest, source_digest
from graphs.errors import ArtifactError
from graphs.machine import Machine, this_machine
from graphs.manifest import BUILD, MANIFEST, Manifest, rebuild
from graphs.plan import EnginePlan
from graphs.weights import ModelWeights


@dataclass(frozen=True, kw_only=True)
class Artifact:
    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path, *, sha256: str | None = None) -> "Artifact":
        """Read the manifest and hash every file.

        `sha256` pins the manifest, and through it everything. Raises ArtifactError.
        """
        manifest = Manifest.read(folder)
        artifact = cls(folder=folder, manifest=manifest)
        if sha256 is not None and sha256.lower() != artifact.digest:
            raise ArtifactError(
                f"{folder}: its manifest has sha256 {artifact.digest}, pinned was "
                f"{sha256.lower()}. To see what this artifact is, run: fourstep verify {folder}"
            )
        for name, expected in manifest.files.items():
            path = folder / name
            if not path.is_file():
                raise ArtifactError(f"{folder}: {name} is missing. {rebuild(folder)}")
            if file_digest(path) != expected:
                raise ArtifactError(
                    f"{folder}: {name} is damaged (its sha256 is not the manifest's). "
                    f"{rebuild(folder)}"
                )
        return artifact

    @property
    def digest(self) -> str:
        """sha256 of the manifest."""
        return file_digest(self.folder / MANIFEST)

    @property
    def kernels(self) -> Path:
        return self.folder / self.manifest.kernels

    @property
    def programs(self) -> Mapping[str, Path]:
        """Program files by key; empty for a compiler that writes none."""
        return {key: self.folder / name for key, name in self.manifest.programs.items()}

    def require(self, config: ModelConfig, weights: ModelWeights, precision: str) -> None:
        """Refuse what was built for another model, machine, toolchain or source.

        Raises ArtifactError with every difference and the command to run.
        """
        machine = list(self._machine_differences())
        model = list(self._model_differences(config, weights, precision))
        options = (*_options(self.manifest.plan), "--precision", precision)
        # Right for something else, it is not to be removed.
        another = f"run: {' '.join((BUILD, 'DIR', *options))}, with a new folder"
        if machine:
            advice = rebuild(self.folder, *options)
        elif model == list(_differs("precision", precision, self.manifest.precision)):
            advice = f"Use --precision {self.manifest.precision}, or {another}"
        else:
            advice = f"Name the artifact that was built for this checkpoint, or {another}"
        self._refuse([*machine, *model], advice)

    def require_machine(self) -> None:
        """The part of `require` that needs no checkpoint."""
        options = (*_options(self.manifest.plan), "--precision", self.manifest.precision)
        self._refuse(list(self._machine_differences()), rebuild(self.folder, *options))

    def _refuse(self, differences: list[str], advice: str) -> None:
        if differences:
            raise ArtifactError(
                f"the artifact {self.folder} does not fit: {'; '.join(differences)}. {advice}"
            )

    def _machine_differences(self) -> Iterator[str]:
        built = self.manifest.machine
        yield from here(built).differences(built)
        yield from _differs("source", source_digest(), self.manifest.source)

    def _model_differences(
        self, config: ModelConfig, weights: ModelWeights, precision: str
    ) -> Iterator[str]:
        manifest = self.manifest
        yield from _differs("model config", config.digest, manifest.model_config)
        yield from _differs("weight layout", layout_digest(weights), manifest.weight_layout)
        yield from _differs("precision", precision, manifest.precision)


def here(built: Machine) -> Machine:
    """This machine as it would run what was built: at that instruction set, if it has it."""
    try:
        return this_machine(f"cpu-{built.isa}")
    except ValueError:
        return this_machine()


def _options(plan: EnginePlan) -> Iterator[str]:
    """What makes `fourstep build` build for this plan."""
    for name, default in vars(EnginePlan()).items():
        if (values := getattr(plan, name)) != default:
            yield f"--{name} {','.join(map(str, values))}"


def _differs(name: str, mine: str, built: str) -> Iterator[str]:
    if mine != built:
        yield f"{name}: {mine[:16]} here, {built[:16]} there"
