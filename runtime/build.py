"""Builds an artifact: kernels and programs compiled, checked, timed, and put in place at once.

Knows the order of the work and the folder's life: everything happens in a scratch folder beside the
target, which appears whole or not at all. Does not know how a program is compiled or what a cost
means. Keeps true: what is written was run and compared first; no weight is in it.
"""

import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import torch

from graphs.artifact import Artifact
from graphs.cache import cache_folder
from graphs.chain import Model
from graphs.checkpoint import Checkpoint
from graphs.compile.check import Exercise, check_program, exercises, weight_tensors
from graphs.compile.compiler import Compiler, EagerCompiler
from graphs.compile.inductor import InductorCompiler
from graphs.compile.parallel import compile_all
from graphs.compile.program import OpenDims, Task, task_of
from graphs.compile.reduced import reduce
from graphs.config import ModelConfig
from graphs.digests import file_digest, layout_digest, source_digest
from graphs.disk import scratch_folder, writing
from graphs.layers.rope import frequencies
from graphs.machine import Machine, this_machine
from graphs.manifest import FORMAT, Costs, EngineEntry, Manifest
from graphs.ops.build import build_kernels, load_kernels, set_isa
from graphs.plan import EnginePlan
from graphs.weights import ModelWeights
from runtime.blocks import mapped_state
from runtime.costs import LEAST_CONTEXT, measure
from runtime.engine import DTYPES, Precision
from runtime.programs import COMPILERS
from runtime.resident import resident
from runtime.scratch import scratch_beside

Progress = Callable[[str, int, int], object]  # what, done, of how many; of none: a remark
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_CONTEXT = 1024  # positions that programs are checked on, if no chunk is longer


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What to build for a checkpoint."""

    plan: EnginePlan = field(default_factory=EnginePlan)
    precision: Precision = "bf16"
    compiler: str = InductorCompiler.name
    machine: Machine = field(default_factory=this_machine)
    jobs: int | None = None

    def make_compiler(self) -> Compiler:
        """For the machine's instruction set."""
        return COMPILERS[self.compiler](self.machine.isa)


def build_artifact(
    config: ModelConfig,
    weights: ModelWeights,
    out: Path,
    options: BuildOptions,
    *,
    progress: Progress | None = None,
) -> Artifact:
    """Write the artifact folder `out`, which must not exist yet.

    Raises ValueError if it does, KernelBuildError, ProgramError, DiskError.
    """
    _check_new(out)
    if options.compiler != EagerCompiler.name:
        _check_temporary(tempfile.gettempdir())
    folders = out.parent, cache_folder()
    with writing(*folders):
        out.parent.mkdir(parents=True, exist_ok=True)
        # The inner one looks before what was written is removed.
        with scratch_beside(out) as scratch, writing(*folders):
            _fill(config, weights, scratch, options, progress or (lambda *_: None))
            _check_new(out)  # others may have built it meanwhile
    return Artifact.open(out)


def check_named(config: ModelConfig, named: Mapping[str, Sequence[int]]) -> None:
    """Sizes of a plan that somebody asks for, by field; the others may be more than the model has.
    Raises ValueError."""
    least = {"contexts": LEAST_CONTEXT, "prefill": 1}
    for name in named.keys() & least.keys():
        values = named[name]
        if values[0] < least[name] or values[-1] > config.max_positions:
            raise ValueError(
                f"{name} = {list(values)}: must be from {least[name]} to the model's "
                f"{config.max_positions} positions"
            )


def _check_temporary(folder: str) -> None:
    """Torch splits its compilers' commands as a shell does."""
    if found := re.search(r"[\s'\"\\]", folder):
        what = {"'": "quote", '"': "quote", "\\": "backslash"}.get(found.group(), "space")
        raise ValueError(
            f"engines cannot be compiled in {folder}, for the {what} in its name: "
            f"set TMPDIR to another folder for temporary files"
        )


def _check_new(out: Path) -> None:
    if out.exists():
        raise ValueError(f"{out} exists already; name a new folder, or remove it first")


def _fill(
    config: ModelConfig,
    weights: ModelWeights,
    folder: Path,
    options: BuildOptions,
    progress: Progress,
) -> None:
    # Padding rows all write the scratch places: in which order must not depend on threads.
    torch.set_num_threads(1)
    model = _reduced_model(config, weights, options.precision, options.plan)
    dims = OpenDims(model.state)
    planned = [
        (chain, [task_of(call, dims) for call in chain.calls])
        for chain in exercises(model, options.plan)
    ]
    tasks = {task.key: task for _, made in planned for task in made}
    compiler = options.make_compiler()
    kernels, files = _compile(list(tasks.values()), folder, compiler, options.jobs, progress)
    load_kernels(kernels)
    set_isa(options.machine.isa)
    _check(model, planned, compiler, files, progress)
    manifest = Manifest(
        format=FORMAT,
        model_config=config.digest,
        weight_layout=layout_digest(weights),
        source=source_digest(),
        precision=options.precision,
        compiler=options.compiler,
        depths=model.depths,
        machine=options.machine,
        plan=options.plan,
        engines=tuple(_entry(chain, made, options.plan) for chain, made in planned),
        programs={key: path.name for key, path in sorted(files.items())},
        kernels=kernels.name,
        costs=Costs(verify={}, draft={}, observe={}, acceptance=()),
        files={path.name: file_digest(path) for path in sorted(folder.iterdir())},
    )
    manifest.write(folder)
    measure(config, weights, Artifact(folder=folder, manifest=manifest), progress).write(folder)


def _reduced_model(
    config: ModelConfig, weights: ModelWeights, precision: Precision, plan: EnginePlan
) -> Model:
    small, drawn = reduce(config, weights)
    act = DTYPES[precision]
    state = mapped_state(
        small,
        slots=plan.batches[-1],
        context=max(_CONTEXT, plan.prefill[-1]),
        largest_call=plan.largest_call(len(drawn.mtp)),
        draft_tokens=len(drawn.mtp),
        dtype=act,
    )
    return Model(
        config=small, act=act, weights=drawn, state=state, frequencies=frequencies(small, None)
    )


def _compile(
    tasks: list[Task], folder: Path, compiler: Compiler, jobs: int | None, progress: Progress
) -> tuple[Path, dict[str, Path]]:
    """Kernels and programs side by side; the library is copied from the cache. What fails first is
    raised: the rest is not waited for."""
    total = len(tasks) + 1
    done, lock = 0, Lock()

    def each(name: str) -> None:
        nonlocal done
        with lock:
            done += 1
            progress(f"compiling {name}", done, total)

    def waiting(other: Path) -> None:
        progress(f"waiting for another process that compiles kernels ({other})", 0, 0)

    def library() -> Path:
        path = build_kernels(cache_folder() / "kernels", waiting=waiting)
        each("kernels")
        return path

    def program(name: str) -> None:
        each(name)
        if cached.done():
            cached.result()

    progress("compiling kernels and programs", 0, total)
    with ThreadPoolExecutor(1) as pool:
        cached = pool.submit(library)
        files = compile_all(compiler, tasks, folder, jobs=jobs, each=program)
        return Path(shutil.copy(cached.result(), folder)), files


def _check(
    model: Model,
    planned: list[tuple[Exercise, list[Task]]],
    compiler: Compiler,
    files: dict[str, Path],
    progress: Progress,
) -> None:
    """Every program once, the rest of each chain eagerly, so that its inputs are real."""
    _import_compiler()
    weights = weight_tensors(model)
    checked: set[str] = set()
    for number, (chain, made) in enumerate(planned):
        progress(f"checking {chain.name}", number, len(planned))
        for call, task in zip(chain.calls, made, strict=True):
            if task.key in checked:
                call.block(*call.args)
                continue
            program = compiler.load(call, files.get(task.key))
            check_program(call, program, weights, reference=chain.affordable)
            checked.add(task.key)
    progress("checking", len(planned), len(planned))


def _import_compiler() -> None:
    """torch's, which whoever looks at calls imports. It then makes a folder of temporary files and
    names it to all processes that are started later."""
    if _CACHE in os.environ:
        return
    try:
        with scratch_folder() as os.environ[_CACHE]:
            importlib.import_module("torch._dynamo")
    finally:
        os.environ.pop(_CACHE)


def _entry(chain: Exercise, made: list[Task], plan: EnginePlan) -> EngineEntry:
    return EngineEntry(
        kind=chain.kind,
        rows=chain.rows // chain.batch,
        batch=chain.batch,
        tp=1,
        contexts=plan.contexts,
        programs=tuple(task.key for task in made),
    )


def open_checkpoint(folder: Path, *, drafting: bool) -> tuple[Checkpoint, ModelWeights]:
    """A checkpoint and its weights (runtime.resident), without MTP layers only where they are
    missing.

    Missing ones are an error when there is to be drafting.
    """
    checkpoint = Checkpoint.open(folder)
    return checkpoint, resident(checkpoint.load(mtp=drafting or not checkpoint.missing_mtp))
