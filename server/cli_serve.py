"""`fourstep serve`: a checkpoint behind gRPC.

Joins checkpoint, engine, service, worker and operations, and says what runs. Keeps true: what a
configuration has wrong is found before a model is loaded; nothing but the operators' port is
reached before the model is loaded.
"""

import asyncio
import logging
from contextlib import ExitStack
from pathlib import Path

import typer
from rich.console import Console

from graphs.machine import this_machine
from runtime.build import open_checkpoint
from runtime.chat import ChatTemplate
from runtime.grammar import Grammars
from runtime.scheduler import Scheduler
from runtime.service import Observer, Service
from runtime.tokenizer import Tokenizer
from server.cli_engine import EngineRequest, find_artifact, make_scheduler
from server.config import ServeConfig
from server.errors import user_errors
from server.operations.operations import Operations
from server.rpc.listener import problems
from server.rpc.served import Identity, Served
from server.rpc.worker import Worker

log = logging.getLogger(__name__)


def run(config: ServeConfig) -> None:
    """Serve until told to stop. Raises typer.Exit: 2 for a user's mistake, 1 for a failure."""
    with ExitStack() as stack:
        with user_errors():
            if wrong := list(problems(config.listeners)):
                raise ValueError("; ".join(wrong))
            operations = stack.enter_context(Operations(config.operations))
            served = open_served(config, observer=operations.metrics)
        raise typer.Exit(asyncio.run(serve(served, config, operations)))


def open_served(config: ServeConfig, *, observer: Observer | None = None) -> Served:
    """The checkpoint, loaded and its engines bound. Raises ValueError or OSError."""
    model, asked = config.model, engine_request(config)
    checkpoint, weights = open_checkpoint(model.checkpoint, drafting=model.spec_tokens != 0)
    dims = checkpoint.config
    tokenizer = Tokenizer.open(model.checkpoint, vocab_size=dims.vocab_size, bos_id=dims.bos_id)
    grammars = Grammars(tokenizer, eos_ids=dims.stop_ids)
    artifact = find_artifact(dims, weights, asked)

    def factory() -> Scheduler:
        return make_scheduler(
            dims, weights, asked, artifact, tokenizer=tokenizer, grammars=grammars
        )

    service = Service(factory, observer=observer)
    engine = service.engine
    return Served(
        folder=model.checkpoint.resolve(),
        config=dims,
        tokenizer=tokenizer,
        template=template_of(model.checkpoint, tokenizer),
        service=service,
        identity=Identity(
            name=model.checkpoint.resolve().name,
            compiler=model.compiler,
            device=this_machine().device,
            isa=this_machine().isa,
            precision=model.precision,
            engines=tuple(engine.describe()),
            artifact=None if artifact is None else artifact.digest,
        ),
        context=model.context,
        draft_tokens=engine.draft_tokens,
        slots=model.slots,
        queued=config.limits.queued,
        tenant_requests=config.limits.tenant_requests,
    )


def engine_request(config: ServeConfig) -> EngineRequest:
    model = config.model
    return EngineRequest(
        compiler=model.compiler,
        artifact=model.artifact,
        artifact_sha256=model.artifact_sha256,
        precision=model.precision,
        draft_tokens=model.spec_tokens,
        context=model.context,
        slots=model.slots,
        queued=config.limits.queued,
    )


def template_of(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """None where the checkpoint takes plain prompts alone."""
    if not (folder / "chat_template.jinja").is_file():
        return None
    return ChatTemplate.open(folder, special_tokens={"bos_token": tokenizer.bos_token})


async def serve(served: Served, config: ServeConfig, operations: Operations) -> int:
    worker = Worker(served, config, interceptors=operations.interceptors)
    await worker.start()
    operations.serving(served)
    if config.operations.log_format == "text":
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(banner(served, config, worker), markup=False)
        if operations.address is not None:
            console.print(f"metrics and probes on http://{operations.address}", markup=False)
    else:
        log.info("serving", extra=started(served, worker) | {"operations": operations.address})
    return await worker.run()


def started(served: Served, worker: Worker) -> dict[str, object]:
    """The banner for machines."""
    who = served.identity
    return {
        "model": who.name,
        "artifact": who.artifact,
        "compiler": who.compiler,
        "precision": who.precision,
        "device": who.device,
        "isa": who.isa,
        "engines": len(who.engines),
        "captured": sum(captured for _, captured in who.engines),
        "slots": served.slots,
        "context": served.context,
        "draft_tokens": served.draft_tokens,
        "listeners": [one.address for one in worker.listeners],
    }


def banner(served: Served, config: ServeConfig, worker: Worker) -> str:
    """What runs, where, and within which limits."""
    who, limits = served.identity, config.limits
    captured = sum(captured for _, captured in who.engines)
    return "\n".join(
        (
            f"{who.name} on {who.device} ({who.isa}), {who.precision}, {who.compiler}",
            f"{len(who.engines)} engines, {captured} captured; {served.slots} slots of "
            f"{served.context} positions; up to {served.draft_tokens} drafts a step",
            *(f"{', '.join(one.services)} on {one.address}" for one in worker.listeners),
            f"requests to {limits.message_mib} MiB, {limits.queued} may wait, "
            f"{limits.deadline_s:.0f} s each at most",
        )
    )
