"""vllm.grpc.engine.VllmEngine: a thin servicer over one Served, for gateways.

Knows messages and statuses. Decides nothing of its own. Keeps true: a request ends when its caller
leaves, and when it is aborted by name, in every state and as often as one likes; a failure is a
status and never a finish reason; every call that is not done here answers UNIMPLEMENTED.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import NoReturn

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from server.rpc.calls import Context, opened, refuse, seconds_left
from server.rpc.served import Reading, Served
from server.rpc.status import ERRORS, status_of
from server.vllm import about, asking
from server.vllm.answering import Answers
from server.vllm.files import Card, archive
from server.vllm.traffic import Traffic

NAME = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"].full_name
CHUNK = 2**16  # bytes of the tokenizer in a message
AGAIN = 0.05  # seconds between attempts to empty the prefix cache


def add_vllm(server: grpc.aio.Server, served: Served, *, deadline_cap: float) -> str:
    """The service joins a server; its full name. Raises ValueError, OSError."""
    engine = VllmEngine(served, deadline_cap=deadline_cap)
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(engine, server)
    return NAME


class VllmEngine(vllm_engine_pb2_grpc.VllmEngineServicer):
    """`deadline_cap`: no request runs longer than so many seconds."""

    def __init__(self, served: Served, *, deadline_cap: float) -> None:
        self._served, self._cap = served, deadline_cap
        self._card = Card.open(served.folder)
        self._traffic = Traffic()
        self._started = time.monotonic()

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        read = partial(self._read, request)
        async with opened(self._served, request, context, read, cap=self._cap) as call:
            prompt, key = call.reading.prompt.ids, call.reading.request.id
            self._traffic.came(key, len(prompt))
            answers = Answers(prompt=prompt, stream=request.stream)
            try:
                async for output in call.outputs:
                    if output.begun is not None:
                        cached = output.begun.cached_tokens
                        self._traffic.began(key, len(prompt), cached)
                    if output.step is not None:
                        self._traffic.gave(len(output.step.token_ids))
                    for message in answers.messages(output):
                        yield message
            finally:
                self._traffic.over(key)

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        for request_id in request.request_ids:
            self._served.cancel(request_id)
        return pb.AbortResponse()

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> pb.HealthCheckResponse:
        if self._served.service.fault is not None:
            return pb.HealthCheckResponse(healthy=False, message="the engine has failed")
        if self._served.leaving:
            return pb.HealthCheckResponse(healthy=False, message="going out of service")
        return pb.HealthCheckResponse(healthy=True)

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        return about.model_info(self._served, self._card)

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        uptime = time.monotonic() - self._started
        return about.server_info(self._served, self._traffic, uptime=uptime)

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        return about.loads(self._served, self._traffic)

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        data, digest = await asyncio.to_thread(archive, self._served.folder)
        for start in range(0, len(data), CHUNK):
            last = start + CHUNK >= len(data)
            yield common_pb2.GetTokenizerChunk(
                data=data[start : start + CHUNK], sha256=digest if last else ""
            )

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: Context
    ) -> common_pb2.FlushCacheResponse:
        """What running answers use stays; until the timeout it is tried again."""
        if not (math.isfinite(request.timeout_s) and request.timeout_s >= 0):
            details = f"timeout_s = {request.timeout_s}: must be a finite number >= 0"
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, details)
        end = time.monotonic() + min(request.timeout_s, seconds_left(context, self._cap))
        try:
            while not await asyncio.wrap_future(self._served.service.forget()):
                if time.monotonic() >= end:
                    message = "running requests use some of it; the rest is forgotten"
                    return common_pb2.FlushCacheResponse(success=False, message=message)
                await asyncio.sleep(AGAIN)
        except ERRORS as error:
            await refuse(context, *status_of(error))
        return common_pb2.FlushCacheResponse(success=True, message="the prefix cache is empty")

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> NoReturn:
        await _not_done(context, "Embed: the model generates text alone")

    async def StartProfile(
        self, request: common_pb2.StartProfileRequest, context: Context
    ) -> NoReturn:
        await _not_done(context, "StartProfile: there is no profiler")

    async def StopProfile(
        self, request: common_pb2.StopProfileRequest, context: Context
    ) -> NoReturn:
        await _not_done(context, "StopProfile: there is no profiler")

    async def SubscribeKvEvents(
        self, request: common_pb2.SubscribeKvEventsRequest, context: Context
    ) -> NoReturn:
        await _not_done(context, "SubscribeKvEvents: the prefix cache is not published")

    def _read(self, request: pb.GenerateRequest, request_id: str, remaining: float) -> Reading:
        prompt = asking.asked(request, self._served)
        params = asking.sampling(
            request.sampling_params, prompt, self._served, temperature=self._card.temperature
        )
        return self._served.request(request_id, prompt, params, remaining=remaining)


async def _not_done(context: Context, details: str) -> NoReturn:
    await refuse(context, grpc.StatusCode.UNIMPLEMENTED, details)
