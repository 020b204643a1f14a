"""fourstep.v1.Control: what this worker is, how busy it is, and its way out of service.

Knows messages and one Served. Keeps true: what GetModel says is what Generate accepts.
"""

import math
from collections.abc import Callable
from importlib.metadata import version
from typing import get_args

import grpc
from fourstep.v1 import control_pb2 as pb
from fourstep.v1 import control_pb2_grpc as pb_grpc

from runtime.request import MAX_ANSWERS, MAX_TOP_LOGPROBS, ConstraintKind
from server.rpc.calls import Context, refuse
from server.rpc.served import Served

Drain = Callable[[float | None, float | None], object]


class Control(pb_grpc.ControlServicer):
    """`drain` begins taking the worker out of service, with the caller's grace and timeout."""

    def __init__(self, served: Served, *, drain: Drain) -> None:
        self._served, self._drain = served, drain

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        served = self._served
        return pb.GetModelResponse(
            name=served.identity.name,
            config_digest=served.config.digest,
            vocab_size=served.config.vocab_size,
            context=served.context,
            stop_token_ids=sorted(served.config.stop_ids),
            bos_token_id=served.config.bos_id,
            draft_tokens=served.draft_tokens,
            chat=served.template is not None,
            images=False,
            constraints=get_args(ConstraintKind),
            max_answers=min(MAX_ANSWERS, served.queued),
            max_logprobs=MAX_TOP_LOGPROBS,
        )

    async def GetEngine(
        self, request: pb.GetEngineRequest, context: Context
    ) -> pb.GetEngineResponse:
        who = self._served.identity
        return pb.GetEngineResponse(
            version=version("fourstep"),
            compiler=who.compiler,
            device=who.device,
            isa=who.isa,
            precision=who.precision,
            engines=[pb.Engine(name=name, captured=captured) for name, captured in who.engines],
            artifact_sha256=who.artifact,
        )

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        load = self._served.service.load
        return pb.GetLoadResponse(
            queued=load["queued"],
            loading=load["loading"],
            running=load["running"],
            slots=self._served.slots,
            blocks=load["blocks"],
            blocks_used=load["blocks_used"],
            draining=self._served.draining,
        )

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        seconds = dict[str, float | None]()
        for name in ("grace_seconds", "timeout_seconds"):
            value = seconds[name] = getattr(request, name) if request.HasField(name) else None
            if value is not None and not 0 <= value < math.inf:
                details = f"{name} = {value}: must be a finite number >= 0"
                await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, details)
        self._drain(seconds["grace_seconds"], seconds["timeout_seconds"])
        return pb.DrainResponse()
