"""Finds an artifact in the user's cache, or builds it there.

Knows the cache's names: one folder for each combination of everything an artifact depends on, so
that different settings never meet. Keeps true: of two processes that need the same artifact one
builds and the other waits for it; an artifact is never removed, since others may use it.
"""

import dataclasses
import hashlib
import json
from pathlib import Path

from graphs.artifact import Artifact
from graphs.cache import cache_folder, locked
from graphs.compile.parallel import check_main
from graphs.config import ModelConfig
from graphs.digests import layout_digest, source_digest
from graphs.weights import ModelWeights
from runtime.build import BuildOptions, Progress, build_artifact


def cached_folder(config: ModelConfig, weights: ModelWeights, options: BuildOptions) -> Path:
    """Where the cache keeps, or would keep, this artifact."""
    parts = {
        "config": config.digest,
        "layout": layout_digest(weights),
        "source": source_digest(),
        "precision": options.precision,
        "compiler": options.compiler,
        "machine": dataclasses.asdict(options.machine),
        "plan": dataclasses.asdict(options.plan),
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return _artifacts() / key[:24]


def _artifacts() -> Path:
    return cache_folder() / "artifacts"


def find_or_build(
    config: ModelConfig,
    weights: ModelWeights,
    options: BuildOptions,
    *,
    progress: Progress | None = None,
) -> Artifact:
    """The cached artifact, built first if there is none.

    Raises ArtifactError if it is damaged, and what build_artifact raises.
    """
    folder = cached_folder(config, weights, options)

    def waiting(lock: Path) -> None:
        if progress is not None:
            progress(f"waiting for another process that builds these engines ({lock})", 0, 0)

    if not folder.exists():
        check_main()
        with locked(folder.with_suffix(".lock"), waiting):
            if not folder.exists():
                return build_artifact(config, weights, folder, options, progress=progress)
    return Artifact.open(folder)


def cache_size() -> tuple[int, int]:
    """Artifacts in the cache, and their bytes."""
    folders = [path for path in _artifacts().glob("[!.]*") if path.is_dir()]
    return len(folders), sum(file.stat().st_size for one in folders for file in one.iterdir())
