"""fourstep.v1.Inference: requests translated, queued, and their outputs translated back.

Knows messages and one Served. Decides nothing of its own. Keeps true: what a message says is what
the runtime is asked, and nothing else.
"""

import asyncio
from collections.abc import AsyncIterator

from fourstep.v1 import inference_pb2 as pb
from fourstep.v1 import inference_pb2_grpc as pb_grpc

from server.rpc import asking
from server.rpc.answering import Answers
from server.rpc.calls import Context, opened, refuse, seconds_left
from server.rpc.served import Reading, Served, new_id
from server.rpc.status import ERRORS, status_of


class Inference(pb_grpc.InferenceServicer):
    """`deadline_cap`: no request runs longer than so many seconds."""

    def __init__(self, served: Served, *, deadline_cap: float) -> None:
        self._served, self._cap = served, deadline_cap

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        request_id = request.request_id or new_id()
        remaining = seconds_left(context, self._cap)

        def read() -> Reading:
            return self._read(request, request_id, remaining)

        size = request.ByteSize()
        async with opened(self._served, request_id, read, context, size=size) as call:
            answers = self._answers(request, request_id, call.reading)
            async for output in call.outputs:
                for message in answers.messages(output):
                    yield message

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

    def _read(self, request: pb.GenerateRequest, request_id: str, remaining: float) -> Reading:
        prompt = asking.asked(request.prompt, self._served)
        return self._served.request(
            request_id,
            prompt,
            asking.sampling(request.sampling, prompt, self._served),
            remaining=remaining,
            priority=request.priority,
            salt=request.cache_salt,
            draft_tokens=request.draft_tokens if request.HasField("draft_tokens") else None,
        )

    def _answers(self, request: pb.GenerateRequest, request_id: str, reading: Reading) -> Answers:
        asked, params = reading.prompt, reading.request.params
        return Answers(
            request_id=request_id,
            tokenizer=self._served.tokenizer,
            prompt=asked,
            parse=request.parse if request.HasField("parse") else asked.chat,
            tool_choice=asking.tool_choice(request.prompt.chat),
            skip_special=params.skip_special_tokens,
            seed=params.seed,
            token_by_token=request.token_by_token,
        )
