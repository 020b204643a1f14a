"""`fourstep serve`: a checkpoint behind gRPC.

Joins checkpoint, engine, service, worker and operations, and says what runs. Keeps true: what a
configuration has wrong is found before a model is loaded; nothing but the operators' port is
reached before the model is loaded.
"""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import typer
import uvloop

from graphs.artifact import Artifact
from graphs.machine import this_machine
from runtime.build import open_checkpoint
from runtime.chat import ChatTemplate
from runtime.grammar import Grammars
from runtime.observer import Observer
from runtime.scheduler import Scheduler
from runtime.service import Service, ServiceFailedError
from runtime.tokenizer import Tokenizer
from server.banner import banner, security
from server.cli_engine import EngineRequest, find_artifact, make_scheduler
from server.cli_ink import new_console
from server.config import ServeConfig
from server.errors import ProblemsError, fail, named, user_errors
from server.operations.operations import Operations
from server.rpc.listener import problems
from server.rpc.served import Identity, Served
from server.rpc.worker import EXIT_FAILURE, Worker

log = logging.getLogger(__name__)


def run(config: ServeConfig, names: Mapping[str, str]) -> None:
    """Serve until told to stop; `names` are the flags that keys came from. Raises typer.Exit: 2 for
    a user's mistake, 1 for a failure."""
    with ExitStack() as stack:
        with user_errors():
            if wrong := list(problems(config.listeners)):
                raise ProblemsError([f"{names.get(key, key)}: {what}" for key, what in wrong])
            with named(names.get("operations.address", "operations.address")):
                operations = stack.enter_context(Operations(config.operations))
            served = open_served(config, observer=operations.metrics)
            stack.callback(served.service.close, 0.0)
        try:
            # A call takes many turns of the loop, and those of Python's own take longer.
            code = uvloop.run(serve(served, config, operations))
        except ServiceFailedError as error:
            raise fail(error, EXIT_FAILURE) from error
        raise typer.Exit(code)


def open_served(config: ServeConfig, *, observer: Observer | None = None) -> Served:
    """The checkpoint, loaded and its engines bound. Raises ValueError or OSError."""
    model, asked = config.model, engine_request(config)
    checkpoint, weights = open_checkpoint(model.checkpoint, drafting=model.spec_tokens != 0)
    dims = checkpoint.config
    if model.context > dims.max_positions:
        raise ValueError(
            f"model.context = {model.context}: the model has {dims.max_positions} positions"
        )
    tokenizer = Tokenizer.open(model.checkpoint, vocab_size=dims.vocab_size, bos_id=dims.bos_id)
    grammars = Grammars(tokenizer, eos_ids=dims.stop_ids)
    template = template_of(model.checkpoint, tokenizer)
    artifact = find_artifact(dims, weights, asked)
    if artifact is not None and (few := turns(artifact, model.slots)):
        log.warning(few)

    def factory() -> Scheduler:
        return make_scheduler(
            dims, weights, asked, artifact, tokenizer=tokenizer, grammars=grammars
        )

    # The last thing that can go wrong: from here on there is a thread to be ended.
    service = Service(factory, observer=observer)
    engine = service.engine
    return Served(
        folder=model.checkpoint.resolve(),
        config=dims,
        tokenizer=tokenizer,
        template=template,
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


def turns(artifact: Artifact, slots: int) -> str | None:
    """What to know of engines for fewer slots a step than there are."""
    most = artifact.manifest.plan.batches[-1]
    if most >= slots:
        return None
    return (
        f"{artifact.folder} has engines for {most} of {slots} slots a step, so answers that run at "
        f"once take turns and each gets slower; set slots to {most}, or build with "
        f"--batches 1,{slots}"
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
        spare=1,  # for the event loop, and for a gateway beside it
    )


def template_of(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """None where the checkpoint takes plain prompts alone."""
    if not (folder / "chat_template.jinja").is_file():
        return None
    return ChatTemplate.open(folder, special_tokens={"bos_token": tokenizer.bos_token})


async def serve(served: Served, config: ServeConfig, operations: Operations) -> int:
    """Until the end of service. Raises ServiceFailedError where it cannot begin, typer.Exit where
    something was free before the model was loaded and is no more."""
    with user_errors():
        worker = Worker(served, config, interceptors=operations.interceptors)
    await worker.start()
    operations.serving(served)
    if config.operations.log_format == "text":
        console = new_console(stderr=True, soft_wrap=True)
        text = banner(served, worker.listeners, config.limits, operations=operations.address)
        console.print(text, markup=False)
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
        "security": [security(one.config) for one in worker.listeners],
    }
