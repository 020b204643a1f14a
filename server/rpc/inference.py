"""fourstep.v1.Inference: requests translated, queued, and their outputs translated back.

Knows messages, statuses and one Served. Decides nothing of its own. Keeps true: whoever stops
listening, cancels or runs out of time ends the request within a step; a call ends once, with a
status that says why.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from fourstep.v1 import inference_pb2 as pb
from fourstep.v1 import inference_pb2_grpc as pb_grpc

from runtime.request import SamplingParams
from server.rpc import asking
from server.rpc.answering import Answers
from server.rpc.served import Asked, Served, new_id
from server.rpc.status import ERRORS, status_of, status_of_end

# grpc's own class is generic in the messages of each method.
Context = Any


async def refuse(context: Context, code: grpc.StatusCode, details: str) -> NoReturn:
    """End the call with this status."""
    await context.abort(code, details)
    raise AssertionError("abort raises")


class Inference(pb_grpc.InferenceServicer):
    """`deadline_cap`: no request runs longer than so many seconds."""

    def __init__(self, served: Served, *, deadline_cap: float) -> None:
        self._served, self._cap = served, deadline_cap

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        request_id = request.request_id or new_id()
        try:
            prompt, params = await asyncio.to_thread(self._read, request)
            stream = await self._served.open(
                self._served.request(
                    request_id,
                    prompt,
                    params,
                    remaining=min(context.time_remaining() or self._cap, self._cap),
                    priority=request.priority,
                    salt=request.cache_salt,
                    draft_tokens=request.draft_tokens if request.HasField("draft_tokens") else None,
                )
            )
        except ERRORS as error:
            await refuse(context, *status_of(error))
        answers = self._answers(request, request_id, prompt, params)
        try:
            async for output in stream:
                status = output.end and status_of_end(output.end)
                if status is not None:
                    await refuse(context, *status)
                for message in answers.messages(output):
                    yield message
        finally:
            self._served.close(request_id)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        try:
            prompt = await asyncio.to_thread(asking.asked, request.prompt, self._served)
        except ERRORS as error:
            await refuse(context, *status_of(error))
        return pb.TokenizeResponse(
            token_ids=prompt.ids, count=len(prompt.ids), room=self._served.room(prompt)
        )

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        cancelled = [one for one in request.request_ids if self._served.cancel(one)]
        return pb.CancelResponse(cancelled_ids=cancelled)

    def _read(self, request: pb.GenerateRequest) -> tuple[Asked, SamplingParams]:
        prompt = asking.asked(request.prompt, self._served)
        return prompt, asking.sampling(request.sampling, prompt, self._served)

    def _answers(
        self, request: pb.GenerateRequest, request_id: str, prompt: Asked, params: SamplingParams
    ) -> Answers:
        return Answers(
            request_id=request_id,
            tokenizer=self._served.tokenizer,
            prompt=prompt,
            parse=request.parse if request.HasField("parse") else prompt.chat,
            tool_choice=asking.tool_choice(request.prompt.chat),
            skip_special=params.skip_special_tokens,
            seed=params.seed,
            token_by_token=request.token_by_token,
        )
