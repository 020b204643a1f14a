"""The engine that a command runs on: eager, a named artifact, or the cache's, built if need be.

Knows where artifacts come from and what to tell the user meanwhile. Keeps true: an artifact that
the user names is used or refused, never replaced.
"""

import gc
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from graphs.artifact import Artifact
from graphs.compile.check import ProgramError
from graphs.compile.compiler import EagerCompiler
from graphs.config import ModelConfig
from graphs.ops.build import KernelBuildError
from graphs.plan import EnginePlan
from graphs.weights import ModelWeights
from runtime.build import BuildOptions
from runtime.engine import Engine, Precision
from runtime.grammar import Grammars
from runtime.pools import PoolSizes
from runtime.processors import Processors
from runtime.programs import programs_of
from runtime.scheduler import Limits, Scheduler
from runtime.sizing import pool_sizes
from runtime.store import cache_size, cached_folder, find_or_build
from runtime.tokenizer import Tokenizer
from runtime.width import StepCosts, costs_by_batch
from server.cli_build import progress_bar
from server.cli_ink import new_console


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """`draft_tokens` None: the width policy decides. `context` positions are needed by each of
    `slots` requests at once, of which `queued` more may wait. `spare`: processors that are left to
    others while one answer is decoded."""

    compiler: str
    artifact: Path | None
    artifact_sha256: str | None
    precision: Precision
    draft_tokens: int | None
    context: int
    slots: int = 1
    queued: int = 256
    spare: int = 0

    @property
    def plan(self) -> EnginePlan:
        """What is built where there is no artifact."""
        return EnginePlan(batches=tuple(sorted({1, self.slots})))


def check_engines(compiler: str, artifact: Path | None, artifact_sha256: str | None) -> None:
    """Raises ValueError for what does not go together."""
    named = artifact is not None or artifact_sha256 is not None
    if named and compiler == EagerCompiler.name:
        raise ValueError("--artifact and --artifact-sha256 have no meaning with --compiler eager")


def find_artifact(
    config: ModelConfig, weights: ModelWeights, request: EngineRequest
) -> Artifact | None:
    """What the engine is made of; None: blocks run eagerly.

    Raises ValueError with what the user has to change.
    """
    check_engines(request.compiler, request.artifact, request.artifact_sha256)
    if request.compiler == EagerCompiler.name:
        return None
    artifact = _artifact(config, weights, request)
    artifact.require(config, weights, request.precision)
    return artifact


def make_scheduler(
    config: ModelConfig,
    weights: ModelWeights,
    request: EngineRequest,
    artifact: Artifact | None,
    *,
    tokenizer: Tokenizer,
    grammars: Grammars | None = None,
) -> Scheduler:
    """An engine's slots, with blocks for so many requests.

    Raises ValueError with what the user has to change.
    """
    made = _scheduler(config, weights, request, artifact, tokenizer, grammars)
    gc.freeze()  # all of it stays; a look at it for garbage takes as long as many steps
    return made


def _scheduler(
    config: ModelConfig,
    weights: ModelWeights,
    request: EngineRequest,
    artifact: Artifact | None,
    tokenizer: Tokenizer,
    grammars: Grammars | None,
) -> Scheduler:
    if artifact is None:
        return Scheduler(
            _eager(config, weights, request),
            limits=Limits(queued=request.queued),
            tokenizer=tokenizer,
            grammars=grammars,
        )
    plan = artifact.manifest.plan
    most = min(artifact.manifest.depths, plan.widths[-1] - 1)
    wanted = most if request.draft_tokens is None else request.draft_tokens
    engine = Engine(
        config,
        weights,
        programs=programs_of(artifact),
        plan=plan,
        precision=request.precision,
        draft_tokens=wanted,
        context=plan.context_for(request.context),
        slots=request.slots,
        pools=_pools(config, weights, plan, request),
        processors=Processors(spare=request.spare),
    )
    table = artifact.manifest.costs
    costs: dict[int, StepCosts] | None = None
    if request.draft_tokens is None and table.verify:
        costs = costs_by_batch(table, plan.batches, draft_tokens=wanted, catch_up=engine.catch_up)
    return Scheduler(
        engine,
        limits=Limits(queued=request.queued),
        tokenizer=tokenizer,
        grammars=grammars,
        costs=costs,
        prior=table.acceptance,
    )


def _eager(config: ModelConfig, weights: ModelWeights, request: EngineRequest) -> Engine:
    """Small shapes: eager blocks gain nothing from large ones."""
    plan = EnginePlan(batches=request.plan.batches, prefill=(64,))
    return Engine(
        config,
        weights,
        plan=plan,
        precision=request.precision,
        draft_tokens=len(weights.mtp) if request.draft_tokens is None else request.draft_tokens,
        context=request.context,
        slots=request.slots,
        pools=_pools(config, weights, plan, request),
    )


def _pools(
    config: ModelConfig, weights: ModelWeights, plan: EnginePlan, request: EngineRequest
) -> PoolSizes:
    return pool_sizes(
        config, plan, depths=len(weights.mtp), positions=request.context, texts=request.slots
    )


def _artifact(config: ModelConfig, weights: ModelWeights, request: EngineRequest) -> Artifact:
    if request.artifact is not None:
        return Artifact.open(request.artifact, sha256=request.artifact_sha256)
    options = BuildOptions(plan=request.plan, precision=request.precision)
    console = new_console(stderr=True)
    folder = cached_folder(config, weights, options)
    if folder.exists():
        return Artifact.open(folder, sha256=request.artifact_sha256)
    if request.artifact_sha256 is not None:
        raise ValueError("--artifact-sha256 pins an artifact, and none is built: name --artifact")
    console.print("building this model's engines, once (--compiler eager does without)")
    artifact = cached_artifact(config, weights, options, console)
    count, size = cache_size()
    console.print(
        f"built {artifact.folder}; artifacts there: {count}, {size / 1e6:.0f} MB in all",
        soft_wrap=True,
    )
    return artifact


def cached_artifact(
    config: ModelConfig, weights: ModelWeights, options: BuildOptions, console: Console
) -> Artifact:
    """The cache's artifact, built with a progress bar first if there is none.

    Raises ValueError, also for what a build fails with.
    """
    try:
        with progress_bar(console) as report:
            return find_or_build(config, weights, options, progress=report)
    except (KernelBuildError, ProgramError) as error:
        raise ValueError(str(error)) from error
