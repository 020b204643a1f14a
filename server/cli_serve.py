"""`fourstep serve`: a checkpoint behind gRPC, fourstep.v1.

Joins checkpoint, engine, service and worker. Keeps true: everything a user can get wrong is found
before the port is open, all of it at once where it is about options; without being told to, nothing
listens beyond this machine.
"""

import asyncio
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from graphs.machine import this_machine
from runtime.build import open_checkpoint
from runtime.chat import ChatTemplate
from runtime.grammar import Grammars
from runtime.scheduler import Scheduler
from runtime.service import Service
from runtime.tokenizer import Tokenizer
from server.cli_engine import EngineRequest, make_scheduler
from server.errors import user_errors
from server.rpc.served import Identity, Served
from server.rpc.worker import Worker, WorkerLimits


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """`host` is an address or unix:PATH; `port` 0: any. `exposed`: listen beyond this machine,
    without encryption."""

    checkpoint: Path
    host: str
    port: int
    exposed: bool
    reflect: bool
    engine: EngineRequest
    limits: WorkerLimits

    @property
    def address(self) -> str:
        return self.host if self.host.startswith("unix:") else f"{self.host}:{self.port}"

    def check(self) -> None:
        """ValueError with everything that is wrong."""
        wrong = []
        if not self.exposed and not is_local(self.host):
            wrong.append(
                f"--host {self.host}: is not this machine, and nothing is encrypted: use "
                "127.0.0.1, a unix: socket, or --exposed where the network is trusted"
            )
        if self.engine.slots < 1:
            wrong.append(f"--slots {self.engine.slots}: must be at least 1")
        if self.engine.context < 2:
            wrong.append(f"--context {self.engine.context}: must be at least 2")
        if wrong:
            raise ValueError("; ".join(wrong))


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def run(options: ServeOptions) -> None:
    """Serve until told to stop. Raises typer.Exit: 2 for a user's mistake, 1 for a failure."""
    with user_errors():
        options.check()
        served = open_served(options)
    code = asyncio.run(serve(served, options))
    raise typer.Exit(code)


def open_served(options: ServeOptions) -> Served:
    """The checkpoint, loaded and its engines bound. Raises ValueError or OSError."""
    asked = options.engine
    checkpoint, weights = open_checkpoint(options.checkpoint, drafting=asked.draft_tokens != 0)
    config = checkpoint.config
    tokenizer = Tokenizer.open(
        options.checkpoint, vocab_size=config.vocab_size, bos_id=config.bos_id
    )
    grammars = Grammars(tokenizer, eos_ids=config.stop_ids)

    def factory() -> Scheduler:
        return make_scheduler(config, weights, asked, tokenizer=tokenizer, grammars=grammars)

    service = Service(factory)
    engine = service.engine
    return Served(
        folder=options.checkpoint.resolve(),
        config=config,
        tokenizer=tokenizer,
        template=template_of(options.checkpoint, tokenizer),
        service=service,
        identity=Identity(
            name=options.checkpoint.resolve().name,
            compiler=asked.compiler,
            device=this_machine().device,
            isa=this_machine().isa,
            precision=asked.precision,
            engines=tuple(engine.describe()),
        ),
        context=asked.context,
        draft_tokens=engine.draft_tokens,
        slots=asked.slots,
    )


def template_of(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """None where the checkpoint takes plain prompts alone."""
    if not (folder / "chat_template.jinja").is_file():
        return None
    return ChatTemplate.open(folder, special_tokens={"bos_token": tokenizer.bos_token})


async def serve(served: Served, options: ServeOptions) -> int:
    worker = Worker(served, options.address, options.limits, reflect=options.reflect)
    await worker.start()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(banner(served, options, worker.port))
    return await worker.run()


def banner(served: Served, options: ServeOptions, port: int) -> str:
    """What runs, where, and within which limits."""
    who, limits = served.identity, options.limits
    captured = sum(captured for _, captured in who.engines)
    where = options.host if options.host.startswith("unix:") else f"{options.host}:{port}"
    return "\n".join(
        (
            f"{who.name} on {who.device} ({who.isa}), {who.precision}, {who.compiler}",
            f"{len(who.engines)} engines, {captured} captured; {served.slots} slots of "
            f"{served.context} positions; up to {served.draft_tokens} drafts a step",
            f"fourstep.v1 on {where}, plaintext; requests to {limits.message_mib} MiB, "
            f"{options.engine.queued} may wait, {limits.deadline_s:.0f} s each at most",
        )
    )
