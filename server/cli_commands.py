"""The `fourstep` command: its commands and options, nothing else.

Each command is imported when it is called, so that help and wrong options answer without loading
torch. Keeps true: exit code 2 and one message for anything a user can get wrong.
"""

import json
import os
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from server.cli_client import client_command
from server.cli_generate_options import generate_command
from server.cli_load import load_command
from server.cli_serve_options import serve_command
from server.cli_streams import name_streams, telling_full
from server.ending import importing
from server.errors import printable
from server.options import (
    NANO,
    AnyCheckpoint,
    AsNumbers,
    CheckpointFolder,
    CompilerName,
    Pin,
    Plots,
    Precision,
    PrecisionName,
)


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # Newer versions of typer check values by pydantic, and that is how it begins.
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


app.command("generate")(generate_command)
app.command("serve")(serve_command)
app.command("client")(client_command)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fourstep {version('fourstep')}")
        raise typer.Exit


@app.callback()
def every_command(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Runs Step-5 checkpoints with their own MTP layers drafting and the backbone verifying."""


class _ModelUnlessNamed(TyperGroup):
    """`fourstep bench [CHECKPOINT] ...` measures a model, as it did before there was more."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["model", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=_ModelUnlessNamed,
    subcommand_metavar="[model] [CHECKPOINT] [OPTIONS] | serve [OPTIONS]",
    help="Measure a model, or a worker that serves one. The word model can be left out; what it "
    "takes is told by `fourstep bench model --help`, and by `fourstep bench serve --help`.",
)
bench.command("serve")(load_command)
app.add_typer(bench, name="bench")


@app.command("build")
def build_command(
    checkpoint: CheckpointFolder,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make.")],
    widths: Annotated[
        str | None, typer.Option(help="Positions a step.", show_default="1,2,3,4")
    ] = None,
    batches: Annotated[str | None, typer.Option(help="Slots a step.", show_default="1")] = None,
    contexts: Annotated[
        str | None,
        typer.Option(help="Positions a slot.", show_default="4096,32768,262144,1048576"),
    ] = None,
    prefill: Annotated[
        str | None, typer.Option(help="Prompt tokens a chunk.", show_default="32,256")
    ] = None,
    precision: Precision = PrecisionName.bf16,
    compiler: Annotated[CompilerName, typer.Option()] = CompilerName.inductor,
    sku: Annotated[
        str | None,
        typer.Option(help="Instruction set to build for.", show_default="this machine's best"),
    ] = None,
) -> None:
    """Compile a checkpoint's engines for this machine; the artifact holds no weights."""
    with importing():
        from server.cli_build import BuildCommand, build

    build(
        BuildCommand(
            checkpoint=checkpoint,
            out=out,
            widths=widths,
            batches=batches,
            contexts=contexts,
            prefill=prefill,
            precision=precision.value,
            compiler=compiler.value,
            sku=sku,
        )
    )


@app.command("verify")
def verify_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", file_okay=False, help="Artifact folder.")
    ],
    artifact_sha256: Pin = None,
) -> None:
    """Check an artifact's digests and whether this machine can run it."""
    with importing():
        from server.cli_build import verify

    verify(folder, artifact_sha256)


@app.command("inspect")
def inspect_command(
    checkpoint: CheckpointFolder,
    context: Annotated[
        int | None, typer.Option(min=1, help="Count the state for so many tokens a sequence.")
    ] = None,
    sequences: Annotated[int, typer.Option(min=1, help="And for so many sequences.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> None:
    """Show formats, sizes and what fits on which GPU, from the files' headers alone."""
    with importing():
        from graphs.checkpoint import Checkpoint
        from graphs.inspect import inspect_checkpoint
        from server.cli_ink import tables_console
        from server.cli_inspect import noting, render
        from server.errors import user_errors

    with user_errors(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")  # the report lists them
        opened = Checkpoint.open(checkpoint)
        report = inspect_checkpoint(opened, context=context, sequences=sequences)
    report = noting(report, [str(warning.message) for warning in told])
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        tables_console().print(render(report))


@bench.command("model")
def bench_command(
    checkpoint: AnyCheckpoint = NANO,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="A random model instead, of the dims below.")
    ] = False,
    dim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="A size of the synthetic model, as layers=12."),
    ] = None,
    width: Annotated[
        list[int] | None, typer.Option(min=1, max=4, help="Positions verified a step.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Slots a step.")] = None,
    acceptance: Annotated[
        float, typer.Option(help="Tokens a step commits on average, where its width allows it.")
    ] = 3.0,
    prefix: Annotated[int, typer.Option(min=1, help="Positions before the first step.")] = 256,
    steps: Annotated[int, typer.Option(min=1, help="Steps a round.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, all cases interleaved.")] = 5,
    threads: Annotated[
        int, typer.Option(min=0, help="Threads of kernels and of the memory test; 0: every core.")
    ] = 0,
    compiler: Annotated[
        CompilerName, typer.Option(help="eager runs the kernels without compiled blocks.")
    ] = CompilerName.inductor,
    plots: Plots = None,
    as_json: AsNumbers = False,
) -> None:
    """Measure a model's steps against what this machine's memory allows."""
    with importing():
        from runtime.bench.run import Options
        from server.cli_bench import BenchOptions, run
        from server.errors import user_errors

    with user_errors():
        measured = Options(
            widths=tuple(sorted(set(width or (1, 2, 3, 4)))),
            batches=tuple(sorted(set(batch or (1, 4)))),
            acceptance=acceptance,
            prefix=prefix,
            steps=steps,
            rounds=rounds,
            threads=threads or os.cpu_count() or 1,
        )
    run(
        BenchOptions(
            checkpoint=checkpoint,
            synthetic=synthetic,
            dims=tuple(dim or ()),
            measured=measured,
            compiler=compiler.value,
            plots=plots,
            json=as_json,
        )
    )


def run() -> None:
    """Read the command line and do what it says. Ends with SystemExit."""
    name_streams()
    # Warnings are for users, not for developers.
    warnings.formatwarning = lambda message, *_args, **_kwargs: printable(
        f"fourstep: warning: {message}\n"
    )
    with telling_full():
        app()
