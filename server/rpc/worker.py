"""One worker process: its listener, its way into service and out of it.

Knows servicers, health and signals. Does not know engines. Keeps true: health says SERVING only
while requests are admitted; going out of service is, in this order: health NOT_SERVING, admitting
still for a grace that lets routers notice, refusing, finishing what runs until a timeout,
cancelling the rest, and the engine last; a second signal skips the waiting.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

import grpc
from fourstep.v1 import (
    control_pb2,
    control_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from server.rpc.control import Control
from server.rpc.inference import Inference
from server.rpc.served import Served

SERVICES = tuple(
    file.DESCRIPTOR.services_by_name[name].full_name
    for file, name in ((inference_pb2, "Inference"), (control_pb2, "Control"))
)
SIGNALS = (signal.SIGTERM, signal.SIGINT)
POLL = 0.1  # seconds between looks at whether the engine still runs


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """`message_mib`: of one request; `streams`: calls of one connection at a time; `grace_s` and
    `timeout_s`: see the module; `deadline_s`: no request runs longer."""

    message_mib: int = 16
    streams: int = 1024
    grace_s: float = 2.0
    timeout_s: float = 60.0
    deadline_s: float = 3600.0

    def options(self) -> list[tuple[str, int]]:
        """As grpc takes them. A client may ping a silent call every ten seconds for ever."""
        return [
            ("grpc.max_receive_message_length", self.message_mib * 2**20),
            ("grpc.max_concurrent_streams", self.streams),
            ("grpc.max_metadata_size", 16 * 2**10),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.so_reuseport", 0),
        ]


class Worker:
    """Serves until `drain`, a signal or the engine's failure; `run` returns the exit code."""

    def __init__(
        self, served: Served, address: str, limits: WorkerLimits, *, reflect: bool = False
    ) -> None:
        self._served = served
        self._server = grpc.aio.server(options=limits.options())
        # An attribute that the module gets when it is imported.
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        self._leave = asyncio.Event()
        self._hurry = asyncio.Event()
        self._grace, self._timeout = limits.grace_s, limits.timeout_s
        inference = Inference(served, deadline_cap=limits.deadline_s)
        inference_pb2_grpc.add_InferenceServicer_to_server(inference, self._server)
        control = Control(served, drain=self.drain)
        control_pb2_grpc.add_ControlServicer_to_server(control, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if reflect:
            reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME), self._server)
        self.port = self._server.add_insecure_port(address)

    def drain(self, grace: float | None = None, timeout: float | None = None) -> None:
        """Begin to leave; again: at once."""
        if self._leave.is_set():
            self._hurry.set()
            return
        self._grace = self._grace if grace is None else grace
        self._timeout = self._timeout if timeout is None else timeout
        self._leave.set()

    async def start(self) -> None:
        await self._server.start()
        await self._say(health_pb2.HealthCheckResponse.SERVING)

    async def run(self, signals: Sequence[signal.Signals] = SIGNALS) -> int:
        """Until the end of service. Exit code 1 where the engine failed."""
        loop = asyncio.get_running_loop()
        for number in signals:
            loop.add_signal_handler(number, self.drain)
        watch = asyncio.create_task(self._watch())
        await self._leave.wait()
        watch.cancel()
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)
        failed = self._served.service.fault is not None
        if not failed:
            await self._unless_hurried(asyncio.sleep(self._grace))
        self._served.draining = True
        if not failed:
            await self._unless_hurried(asyncio.wait_for(self._served.idle(), self._timeout))
        self._served.cancel_all()
        await self._server.stop(grace=1.0)
        await asyncio.to_thread(self._served.service.close, 0.0)
        return int(failed)

    async def _watch(self) -> None:
        while self._served.service.fault is None:
            await asyncio.sleep(POLL)
        self.drain()

    async def _say(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", *SERVICES):
            await self._health.set(name, status)

    async def _unless_hurried(self, waiting: Awaitable[object]) -> None:
        """Wait for it, or until someone is in a hurry."""
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._hurry.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await task
