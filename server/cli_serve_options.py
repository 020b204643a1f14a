"""The options of `fourstep serve`, and the keys of its configuration that they stand for.

Knows the command line; imports the runtime when it is called, so that help and wrong options answer
without loading torch. Keeps true: a flag goes before the file, and what a flag says wrong is told
by the flag's name.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from server.config import (
    DrainConfig,
    LimitsConfig,
    ListenerConfig,
    ModelSection,
    OperationsConfig,
)
from server.config_file import Flag, load
from server.ending import importing
from server.errors import user_errors
from server.options import CompilerName, Pin, PrecisionName

_MODEL, _LIMITS, _DRAIN = ModelSection(), LimitsConfig(), DrainConfig()


def _option(text: str, default: object = None, **values: Any) -> Any:
    return typer.Option(
        help=text, show_default=False if default is None else str(default), **values
    )


def serve_command(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            file_okay=False, help="Checkpoint folder.", show_default="the shipped step5-nano"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        _option("TOML file of all that is below and more; flags go before it.", metavar="FILE"),
    ] = None,
    listen: Annotated[
        str | None,
        _option("Where: HOST:PORT, port 0 for any, or unix:PATH.", ListenerConfig().address),
    ] = None,
    tls_cert: Annotated[
        Path | None, _option("Certificate, PEM; read again when it changes.")
    ] = None,
    tls_key: Annotated[Path | None, _option("Its key, PEM, not encrypted.")] = None,
    tls_client_ca: Annotated[
        Path | None, _option("Clients need a certificate of this one, PEM.")
    ] = None,
    tokens: Annotated[
        Path | None, _option("File of who may call: lines of a name and a token.")
    ] = None,
    operator: Annotated[
        list[str] | None, _option("A name that may drain the worker; may be repeated.")
    ] = None,
    exposed: Annotated[
        bool, typer.Option("--exposed", help="Plaintext may be reached from other machines.")
    ] = False,
    reflection: Annotated[
        bool, typer.Option("--reflection", help="Let clients ask which services there are.")
    ] = False,
    listen_vllm: Annotated[
        str | None,
        _option("Where a gateway finds vllm.grpc.engine, as --listen; it has no tokens."),
    ] = None,
    operations: Annotated[
        str | None, _option("Metrics and probes, HOST:PORT.", OperationsConfig().address)
    ] = None,
    slots: Annotated[int | None, _option("Answers that run at once.", _MODEL.slots)] = None,
    context: Annotated[
        int | None, _option("Positions of prompt and answer.", _MODEL.context)
    ] = None,
    queued: Annotated[int | None, _option("Answers that may wait.", _LIMITS.queued)] = None,
    spec_tokens: Annotated[int | None, _option("Drafts a step, 0 to 3.", "as many as pay")] = None,
    grace: Annotated[
        float | None, _option("Seconds of admitting still, once told to stop.", _DRAIN.grace_s)
    ] = None,
    timeout: Annotated[
        float | None, _option("Seconds that running answers then have.", _DRAIN.timeout_s)
    ] = None,
    precision: Annotated[PrecisionName | None, _option("Activation precision.", "bf16")] = None,
    compiler: Annotated[
        CompilerName | None, _option("eager needs no build, and is slow.", "inductor")
    ] = None,
    artifact: Annotated[
        Path | None, _option("Engines made by fourstep build.", metavar="DIR")
    ] = None,
    artifact_sha256: Pin = None,
) -> None:
    """Serve fourstep.v1 over gRPC."""
    flags: list[Flag] = [
        ("CHECKPOINT", "model.checkpoint", checkpoint),
        ("--artifact", "model.artifact", artifact),
        ("--artifact-sha256", "model.artifact_sha256", artifact_sha256),
        ("--compiler", "model.compiler", compiler and compiler.value),
        ("--precision", "model.precision", precision and precision.value),
        ("--slots", "model.slots", slots),
        ("--context", "model.context", context),
        ("--spec-tokens", "model.spec_tokens", spec_tokens),
        ("--queued", "limits.queued", queued),
        ("--grace", "drain.grace_s", grace),
        ("--timeout", "drain.timeout_s", timeout),
        ("--operations", "operations.address", operations),
        ("--listen", "listeners[0].address", listen),
        ("--tls-cert", "listeners[0].tls.cert", tls_cert),
        ("--tls-key", "listeners[0].tls.key", tls_key),
        ("--tls-client-ca", "listeners[0].tls.client_ca", tls_client_ca),
        ("--tokens", "listeners[0].tokens", tokens),
        ("--operator", "listeners[0].operators", operator or None),
        ("--exposed", "listeners[0].exposed", exposed or None),
        ("--reflection", "listeners[0].reflection", reflection or None),
    ]
    if listen_vllm is not None:
        flags += [
            ("--listen-vllm", "listeners[1].address", listen_vllm),
            ("--listen-vllm", "listeners[1].protocol", "vllm"),
            ("--exposed", "listeners[1].exposed", exposed or None),
        ]
    with user_errors():
        chosen = load(config, flags)
    with importing():
        from server.cli_serve import run

    run(chosen, {key: flag for flag, key, value in flags if value is not None})
