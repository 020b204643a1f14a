"""`fourstep bench serve`: its options; a load put on a worker, shown as tables, JSON and plots.

Joins connection, plan, sender and report; measures nothing itself. Imports no torch: the generator
must leave the machine to the worker. Keeps true: what a user can get wrong is said before the
first request.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.cli_client import DEFAULT_ADDRESS, INTERRUPTED, Address, Ca, Cert, Key, TokenFile
from server.ending import importing
from server.options import AsNumbers, Plots

if TYPE_CHECKING:
    from server.client.connection import Connection
    from server.load.plan import Load
    from server.load.report import Goodput
    from server.load.run import Outcome

REQUESTS = 100


def load_command(
    address: Address = DEFAULT_ADDRESS,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Open loop: requests a second, arriving at random."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Closed loop: requests open at a time.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="How many.", show_default=f"{REQUESTS} without --duration"),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds in which requests are begun.")
    ] = None,
    prompt: Annotated[
        str, typer.Option(metavar="MIX", help="Tokens: N, N-M, or several as 32:0.7,256-512:0.3.")
    ] = "64-256",
    answer: Annotated[str, typer.Option(metavar="MIX", help="The same of answers.")] = "32-128",
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What prompts are cut from.",
            show_default="Python's library",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same load.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that a request has.")] = 120.0,
    goodput: Annotated[
        str | None,
        typer.Option(
            metavar="LIMITS",
            help="Count requests within so many ms, as ttft:200,between:50,total:5000.",
        ),
    ] = None,
    plots: Plots = None,
    as_json: AsNumbers = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    token_file: TokenFile = None,
) -> None:
    """Put a load on a worker and tell what its clients see."""
    with importing():
        import grpc.aio

        from runtime.bench.drawing import ready
        from server.client.connection import Target, exit_code, first_said
        from server.errors import fail, gathering, named, user_errors
        from server.files import read_text
        from server.load.plan import NO_LENGTHS, Lengths, Load
        from server.load.report import Goodput
        from server.load.texts import default_text

    prompts = answers = NO_LENGTHS
    with user_errors(), gathering() as wrong:
        with wrong.kept():
            connection = Target(address=address, ca=ca, cert=cert, key=key, token=token_file).open()
        with wrong.kept():
            prompts = Lengths.parse(prompt, "--prompt")
        with wrong.kept():
            answers = Lengths.parse(answer, "--answer")
        with wrong.kept():
            load = Load(
                prompt=prompts,
                answer=answers,
                rate=rate,
                concurrency=concurrency,
                requests=REQUESTS if requests is None and duration is None else requests,
                duration=duration,
                seed=seed,
            )
        with wrong.kept():
            source = default_text() if text is None else read_text(str(text), "--text")
        with wrong.kept():
            limits = None if goodput is None else Goodput.parse(goodput)
        with wrong.kept(), named("--plots"):
            if plots is not None:
                ready(plots)
    options = LoadOptions(
        connection=connection,
        load=load,
        text=source,
        temperature=temperature,
        timeout=timeout,
        goodput=limits,
        plots=plots,
        json=as_json,
    )
    try:
        run(options)
    except grpc.aio.AioRpcError as error:
        raise fail(RuntimeError(first_said(error, address)), exit_code(error)) from error


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The command line, checked; `text` is what prompts are cut from."""

    connection: "Connection"
    load: "Load"
    text: str
    temperature: float
    timeout: float
    goodput: "Goodput | None"
    plots: Path | None
    json: bool


def run(options: LoadOptions) -> None:
    """Raises grpc.aio.AioRpcError where the worker cannot be talked to; typer.Exit."""
    from server.cli_ink import new_console, tables_console
    from server.errors import named, user_errors
    from server.load.plots import write_plots
    from server.load.report import report
    from server.load.tables import LEGEND, tables

    console = new_console(stderr=True)
    with console.status("asking the worker") as status, user_errors():
        outcomes, stopped = asyncio.run(measure(options, status.update))
    found = report(outcomes, options.goodput)
    if options.json:
        told = _described(options) | {"stopped_early": stopped} | found.to_json()
        typer.echo(json.dumps(told, indent=1))
    else:
        shown = tables_console()
        for table in tables(found, options.load, options.goodput):
            shown.print(table)
            shown.print()
        shown.print(LEGEND, style="dim")
    if options.plots is not None:
        with user_errors(), named("--plots"):
            written = write_plots(outcomes, options.plots)
        console.print(f"plots: {', '.join(map(str, written))}", soft_wrap=True)
    if stopped:
        typer.echo("fourstep: stopped early: requests that were still open do not count", err=True)
        raise typer.Exit(INTERRUPTED)


async def measure(
    options: LoadOptions, say: Callable[[str], object]
) -> "tuple[list[Outcome], bool]":
    """What ended, and whether Ctrl-C was sooner than the end of the load.

    Raises ValueError for what the worker's context has no room for, grpc.aio.AioRpcError.
    """
    from fourstep.v1 import control_pb2, control_pb2_grpc

    from server.load.run import Sender
    from server.load.texts import Texts

    load, connection = options.load, options.connection
    async with connection.async_channel() as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        model = await stub.GetModel(control_pb2.GetModelRequest(), metadata=connection.metadata)
        if load.prompt.most + load.answer.most > model.context:
            raise ValueError(
                f"--prompt and --answer: {load.prompt.most} and {load.answer.most} tokens do not "
                f"fit the worker's {model.context} positions"
            )
        say("tokenizing")
        texts = await Texts.read(options.text, model, channel, connection.metadata)
        sender = Sender(
            channel=channel,
            metadata=connection.metadata,
            texts=texts,
            temperature=options.temperature,
            timeout=options.timeout,
        )
        over = await sender.run(load, lambda over, open_: say(f"{over} ended, {open_} open"))
        task = asyncio.current_task()
        assert task is not None
        return over, task.cancelling() > 0


def _described(options: LoadOptions) -> dict[str, Any]:
    load = asdict(options.load) | {
        "prompt": options.load.prompt.text,
        "answer": options.load.answer.text,
        "temperature": options.temperature,
    }
    limits = None if options.goodput is None else dict(options.goodput.limits)
    return {"address": options.connection.address, "load": load, "goodput_limits_ms": limits}
