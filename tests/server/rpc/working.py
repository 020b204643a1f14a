"""A worker on a thread of its own, on a free port of this machine, with a tiny eager model."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import uvloop
from fourstep.v1 import control_pb2_grpc, inference_pb2_grpc
from fourstep.v1 import inference_pb2 as pb
from fourstep.v1.errors_pb2 import ErrorDetail, ErrorReason
from google.rpc.status_pb2 import Status

from server.cli_serve import open_served
from server.config import (
    DrainConfig,
    LimitsConfig,
    ListenerConfig,
    ModelSection,
    OperationsConfig,
    ServeConfig,
)
from server.operations.operations import Operations
from server.rpc.served import Served
from server.rpc.worker import Worker

CONTEXT = 256


class Running:
    """The worker, and a client's channel to its first listener; `code` is the exit code once it is
    over."""

    def __init__(self, worker: Worker, served: Served, loop: asyncio.AbstractEventLoop) -> None:
        self.worker, self.served, self.loop = worker, served, loop
        self.channel = grpc.insecure_channel(worker.listeners[0].address)
        self.inference = inference_pb2_grpc.InferenceStub(self.channel)
        self.control = control_pb2_grpc.ControlStub(self.channel)
        self.code: int | None = None

    def drain(self) -> None:
        self.loop.call_soon_threadsafe(self.worker.drain)


FEW = LimitsConfig(queued=4)
ANYWHERE = ListenerConfig(address="127.0.0.1:0", reflection=True)


def tiny_config(
    folder: Path,
    *,
    listeners: tuple[ListenerConfig, ...] = (ANYWHERE,),
    limits: LimitsConfig = FEW,
    grace_s: float = 0.05,
    timeout_s: float = 20.0,
) -> ServeConfig:
    """Two slots of a checkpoint without a build."""
    return ServeConfig(
        model=ModelSection(checkpoint=folder, compiler="eager", context=CONTEXT, slots=2),
        listeners=listeners,
        limits=limits,
        drain=DrainConfig(grace_s=grace_s, timeout_s=timeout_s),
        operations=OperationsConfig(address=None),
    )


@contextmanager
def running(folder: Path, **changes: Any) -> Iterator[Running]:
    """A worker of `tiny_config` with these changes."""
    with running_as(tiny_config(folder, **changes)) as found:
        yield found


@contextmanager
def running_as(config: ServeConfig, *, operations: Operations | None = None) -> Iterator[Running]:
    """As `fourstep serve` does; without operations nobody is told of it."""
    served = open_served(config, observer=operations and operations.metrics)
    started, found = threading.Event(), list[Running]()

    async def main() -> int:
        interceptors = operations.interceptors if operations else lambda _: ()
        worker = Worker(served, config, interceptors=interceptors)
        await worker.start(signals=())
        if operations:
            operations.serving(served)
        found.append(Running(worker, served, asyncio.get_running_loop()))
        started.set()
        return await worker.run()

    def run() -> None:
        code = uvloop.run(main())
        found[0].code = code

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(60)
    try:
        yield found[0]
    finally:
        if thread.is_alive():
            found[0].drain()
            found[0].drain()  # at once
        thread.join(60)
        found[0].channel.close()
    assert not thread.is_alive()


def reason_of(error: Any) -> str:
    """What the typed details of a call's error say; they agree with its status."""
    (data,) = [v for key, v in error.trailing_metadata() if key == "grpc-status-details-bin"]
    status, detail = Status.FromString(data), ErrorDetail()
    assert (status.code, status.message) == (error.code().value[0], error.details())
    (packed,) = status.details
    assert packed.Unpack(detail)
    return ErrorReason.Name(detail.reason).removeprefix("ERROR_REASON_")


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for it. AssertionError if it does not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


def text_request(text: str = "def read", **sampling: Any) -> pb.GenerateRequest:
    values: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, **sampling}
    return pb.GenerateRequest(prompt=pb.Prompt(text=text), sampling=pb.SamplingParams(**values))
