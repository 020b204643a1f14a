"""`fourstep bench`: a model measured against this machine's memory, shown as tables or JSON.

Joins checkpoint (or a synthetic one, written to a temporary folder), engines, measurement and
plots; measures nothing itself. Keeps true: whatever a user can get wrong is found before the first
engine runs.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table as RichTable

from graphs.checkpoint import Checkpoint
from graphs.compile.compiler import EagerCompiler
from graphs.config import ModelConfig
from graphs.disk import writing
from graphs.ops.build import set_threads
from graphs.plan import EnginePlan
from graphs.synthetic import SyntheticDims
from graphs.synthetic_weights import write_synthetic
from graphs.weights import ModelWeights
from runtime.bench.drawing import ready
from runtime.bench.plots import write_plots
from runtime.bench.run import ForcedError, Options, Subject, check, measure
from runtime.bench.tables import LEGEND, Table, tables, to_json
from runtime.build import BuildOptions, open_checkpoint
from runtime.programs import Programs, programs_of
from server.cli_engine import cached_artifact
from server.cli_ink import WIDE, new_console
from server.errors import fail, named, user_errors


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The command line: `dims` are NAME=NUMBER, for a synthetic model alone."""

    checkpoint: Path
    synthetic: bool
    dims: tuple[str, ...]
    measured: Options
    compiler: str
    plots: Path | None
    json: bool


def run(options: BenchOptions) -> None:
    """Measure and print. Raises typer.Exit: 2 for a user's mistake, 1 for a failure."""
    console = new_console(stderr=True)
    if options.plots is not None:
        with user_errors(), named("--plots"):
            ready(options.plots)
    with _checkpoint(options) as (checkpoint, weights):
        with user_errors():
            subject = _subject(checkpoint.config, weights, options, console)
        with console.status("preparing") as status:
            try:
                result = measure(subject, options.measured, status.update)
            except ForcedError as error:
                raise fail(error, 1) from error
    if options.json:
        print_json(to_json(result))
    else:
        print_tables(tables(result))
    if options.plots is not None:
        stem = "synthetic" if options.synthetic else options.checkpoint.resolve().name
        with user_errors(), named("--plots"):
            written = write_plots(result, options.plots, stem)
        console.print(f"plots: {', '.join(map(str, written))}")


def _subject(
    config: ModelConfig, weights: ModelWeights, options: BenchOptions, console: Console
) -> Subject:
    """The model with the cache's engines for the shapes to be measured, built if need be; or with
    none: its blocks run eagerly."""
    measured = options.measured
    plan = EnginePlan(widths=measured.widths, batches=measured.batches)
    check(config, weights, measured)
    programs = Programs()
    if options.compiler != EagerCompiler.name:
        programs = programs_of(cached_artifact(config, weights, BuildOptions(plan=plan), console))
    set_threads(measured.threads)
    return Subject(config=config, weights=weights, programs=programs, plan=plan)


@contextmanager
def _checkpoint(options: BenchOptions) -> Iterator[tuple[Checkpoint, ModelWeights]]:
    """The named checkpoint, or a synthetic one for as long as the context lasts."""
    with tempfile.TemporaryDirectory() as scratch:
        with user_errors():
            if options.dims and not options.synthetic:
                raise ValueError("--dim describes a synthetic model: add --synthetic")
            folder = options.checkpoint
            if options.synthetic:
                folder = Path(scratch)
                dims = parse_dims(options.dims)
                with writing(folder):
                    write_synthetic(folder, dims)
            opened = open_checkpoint(folder, drafting=False)
        yield opened


def parse_dims(given: Sequence[str]) -> SyntheticDims:
    """The default dims with NAME=NUMBER changes. Raises ValueError naming what does not parse."""
    known = [field.name for field in fields(SyntheticDims)]
    changes: dict[str, int] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in known:
            raise ValueError(f"--dim {text!r}: the names are {', '.join(known)}")
        if not equals or not value.strip().isdecimal():
            raise ValueError(f"--dim {text!r}: must be {name}=NUMBER")
        changes[name] = int(value)
    return SyntheticDims(**changes)


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=1))


def print_tables(found: Sequence[Table]) -> None:
    """On a terminal too narrow for a line, the terminal breaks it; columns stay whole."""
    console = new_console()
    console.width = WIDE
    for table in found:
        shown = RichTable(box=None)
        for index, column in enumerate(table.columns):
            shown.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
        for row in table.rows:
            shown.add_row(*row)
        console.print(f"{table.title}\n", shown, "", sep="")
    console.print(LEGEND)
