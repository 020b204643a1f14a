"""A server whose calls are watched and whose servicer does what its request's id says.

The messages are fourstep.v1's; there is no model behind them.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from fourstep.v1 import inference_pb2 as pb
from fourstep.v1 import inference_pb2_grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from runtime.answer import Output
from runtime.numbers import Numbers
from runtime.request import Step
from server.operations.interceptor import Calls
from server.operations.record import current
from server.operations.traces import Traces
from server.rpc.caller import set_tenant

LISTENER = "somewhere:1"
GENERATE = "fourstep.v1.Inference/Generate"
TOKENIZE = "fourstep.v1.Inference/Tokenize"


class Servicer(inference_pb2_grpc.InferenceServicer):
    async def Generate(
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        wish, record = request.request_id, current()
        set_tenant("acme")
        record.called(wish)
        if wish == "refuse":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        if wish == "raise":
            raise ValueError("what somebody sent")
        for output in outputs():
            record.seen(output)
            yield pb.GenerateResponse(text="x")
        if wish == "break":
            await context.abort(grpc.StatusCode.INTERNAL, "the engine failed")
        if wish == "flood":
            while True:
                yield pb.GenerateResponse(text="x" * 100_000)
        if wish == "stay":
            await asyncio.sleep(3600)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        set_tenant("acme")
        if not request.HasField("prompt"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "prompt: is needed")
        return pb.TokenizeResponse(count=3)


def outputs() -> list[Output]:
    """A prompt's token, then a step of three of which two were drafted."""
    begun = Numbers(prompt_tokens=5, cached_tokens=4, queued_s=0.5, first_token_s=0.75)
    first = Step(token_ids=(7,), drafted=(), accepted=0, finish_reason=None)
    second = Step(token_ids=(1, 2, 3), drafted=(1, 2, 9), accepted=2, finish_reason=None)
    return [
        Output(request_id="", index=0, step=first, begun=begun),
        Output(request_id="", index=0, step=second),
    ]


class Watched:
    """The server's channel and registry."""

    def __init__(self, registry: CollectorRegistry, channel: grpc.Channel) -> None:
        self.registry, self.channel = registry, channel
        self.inference = inference_pb2_grpc.InferenceStub(channel)

    def ended(self, rpc: str, code: str) -> float:
        labels = {"listener": LISTENER, "rpc": rpc, "code": code}
        return self.registry.get_sample_value("fourstep_calls_total", labels) or 0

    def begun(self, rpc: str) -> float:
        labels = {"listener": LISTENER, "rpc": rpc}
        return self.registry.get_sample_value("fourstep_calls_begun_total", labels) or 0

    def open(self, rpc: str) -> float:
        labels = {"listener": LISTENER, "rpc": rpc}
        return self.registry.get_sample_value("fourstep_calls_open", labels) or 0


@contextmanager
def watched(
    traces: Traces | None = None, inner: Sequence[grpc.aio.ServerInterceptor] = ()
) -> Iterator[Watched]:
    """On a thread and an event loop of its own; `inner`: interceptors behind those that watch."""
    registry, started, ports = CollectorRegistry(), threading.Event(), list[int]()
    loop, over = asyncio.new_event_loop(), asyncio.Event()

    async def main() -> None:
        calls = Calls(registry, traces=traces)
        server = grpc.aio.server(interceptors=(*calls.interceptors(lambda: LISTENER), *inner))
        inference_pb2_grpc.add_InferenceServicer_to_server(Servicer(), server)
        servicer = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        reflection.enable_server_reflection([reflection.SERVICE_NAME], server)
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        started.set()
        await over.wait()
        await server.stop(0)
        calls.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert started.wait(60)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
            yield Watched(registry, channel)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(60)
        loop.close()


class Lines(logging.Handler):
    """The fields of what is logged of calls, as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() in ("request", "sent away"):
            self.found.append({**record.__dict__})
