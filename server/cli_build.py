"""`fourstep build` and `fourstep verify`: artifacts on the command line.

Knows options and progress bars. Does not build or check anything itself. Keeps true: whatever a
user can get wrong is refused before the first program is compiled.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from graphs.artifact import Artifact
from graphs.compile.check import ProgramError
from graphs.machine import this_machine
from graphs.ops.build import KernelBuildError
from graphs.plan import EnginePlan
from runtime.build import BuildOptions, build_artifact, check_named, open_checkpoint
from runtime.build import Progress as Report
from runtime.engine import Precision
from server.cli_ink import new_console, tables_console
from server.errors import fail, user_errors

SILENCE_S = 20.0  # after which a line says that the work goes on


@dataclass(frozen=True, kw_only=True)
class BuildCommand:
    """The command line; numbers are comma-separated lists, None for the default."""

    checkpoint: Path
    out: Path
    widths: str | None
    batches: str | None
    contexts: str | None
    prefill: str | None
    precision: Precision
    compiler: str
    sku: str | None


def build(command: BuildCommand) -> None:
    """Build and say what came of it. Raises typer.Exit: 2 for a user's mistake, 1 for a failure."""
    console = new_console(stderr=True)
    start = time.perf_counter()
    with user_errors():
        lists = {name: getattr(command, name) for name in vars(EnginePlan())}
        given = {name: numbers(name, text) for name, text in lists.items() if text is not None}
        options = BuildOptions(
            plan=EnginePlan(**given),
            precision=command.precision,
            compiler=command.compiler,
            machine=this_machine(command.sku),
        )
        checkpoint, weights = open_checkpoint(command.checkpoint, drafting=False)
        check_named(checkpoint.config, given)
        try:
            with progress_bar(console) as report:
                artifact = build_artifact(
                    checkpoint.config, weights, command.out, options, progress=report
                )
        except (KernelBuildError, ProgramError) as error:
            raise fail(error, 1) from error
    size = sum(path.stat().st_size for path in artifact.folder.iterdir())
    console.print(
        f"built {artifact.folder} in {time.perf_counter() - start:.0f} s: "
        f"{len(artifact.manifest.programs)} programs, {size / 1e6:.0f} MB",
        soft_wrap=True,
    )
    typer.echo(artifact.digest)


def verify(folder: Path, sha256: str | None) -> None:
    """Check every digest, and that this machine and these sources can run it."""
    with user_errors():
        artifact = Artifact.open(folder, sha256=sha256)
        artifact.require_machine()
    tables_console().print(_describe(artifact))
    typer.echo(f"sha256 {artifact.digest}")


def numbers(name: str, text: str) -> tuple[int, ...]:
    """ "1,2,4" as numbers. Raises ValueError naming the option."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--{name} {text}: must be numbers separated by commas") from error


@contextmanager
def progress_bar(console: Console) -> Iterator[Report]:
    """A bar on a terminal; elsewhere a line now and then. Remarks are lines everywhere."""
    columns = (
        *(TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn()),
        TimeElapsedColumn(),
    )
    if not console.is_terminal:
        with _lines(console) as lines:
            yield lines
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            if total:
                bar.update(task, description=what, completed=done, total=total)
            else:
                console.print(what, soft_wrap=True, markup=False)

        yield report


@contextmanager
def _lines(console: Console) -> Iterator[Report]:
    """One when the work changes its kind, at each of its tenths, and after a silence."""
    told: dict[str, int] = {}
    start, over, news = time.monotonic(), threading.Event(), threading.Event()
    now = ""

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)
        news.set()

    def report(what: str, done: int, total: int) -> None:
        nonlocal now
        if not total:
            now = now or what
            say(what)
            return
        kind, tenth = what.partition(" ")[0], 10 * done // total
        now = f"{kind}: {done} of {total}"
        if kind not in told:
            say(f"{kind} ({total})")
        elif tenth > told[kind] and total > 1:
            say(now)
        told[kind] = max(tenth, told.get(kind, 0))

    def fill_silence() -> None:
        while not over.wait(SILENCE_S):
            if now and not news.is_set():
                say(f"{now} after {time.monotonic() - start:.0f} s")
            news.clear()

    filler = threading.Thread(target=fill_silence, daemon=True)
    filler.start()
    try:
        yield report
    finally:
        over.set()
        filler.join()


def _describe(artifact: Artifact) -> Table:
    manifest = artifact.manifest
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a path is of use whole
    machine = manifest.machine
    table.add_row("artifact", str(artifact.folder))
    table.add_row("SKU", f"{machine.device}, {machine.arch}, {machine.isa}, torch {machine.torch}")
    table.add_row("compiler", f"{manifest.compiler}, {manifest.precision}")
    for name, values in vars(manifest.plan).items():
        table.add_row(name, " ".join(str(value) for value in values))
    table.add_row("programs", f"{len(manifest.programs)} for {len(manifest.engines)} engines")
    for shape, cost in manifest.costs.verify.items():
        draft = manifest.costs.draft.get(shape, 0.0)
        table.add_row(f"step {shape}", f"{cost:.0f} us to verify, {draft:.0f} us to draft")
    table.add_row("model config", manifest.model_config[:16])
    table.add_row("weight layout", manifest.weight_layout[:16])
    table.add_row("source", manifest.source[:16])
    return table
