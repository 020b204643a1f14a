"""fourstep.v1.Inference: requests translated, queued, and their outputs translated back.

Knows messages and one Served. Decides nothing of its own. Keeps true: what a message says is what
the runtime is asked, and nothing else.
"""

from collections.abc import AsyncIterator
from functools import partial

from fourstep.v1 import inference_pb2 as pb
from fourstep.v1 import inference_pb2_grpc as pb_grpc

from server.rpc import asking
from server.rpc.answering import Answers
from server.rpc.calls import Call, Context, opened, refuse
from server.rpc.served import Reading, Served, made_of
from server.rpc.status import ERRORS, status_of


class Inference(pb_grpc.InferenceServicer):
    """`deadline_cap`: no request runs longer than so many seconds."""

    def __init__(self, served: Served, *, deadline_cap: float) -> None:
        self._served, self._cap = served, deadline_cap

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        read = partial(self._read, request)
        async with opened(self._served, request, context, read, cap=self._cap) as call:
            answers = self._answers(request, call)
            async for output in call.outputs:
                for message in answers.messages(output):
                    yield message

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        try:
            read = partial(asking.asked, request.prompt, self._served)
            prompt = await made_of(request.ByteSize(), read)
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

    def _answers(self, request: pb.GenerateRequest, call: Call) -> Answers:
        asked, params = call.reading.prompt, call.reading.request.params
        return Answers(
            request_id=call.request_id,
            tokenizer=self._served.tokenizer,
            prompt=asked,
            parse=request.parse if request.HasField("parse") else asked.chat,
            tool_choice=asking.tool_choice(request.prompt.chat),
            skip_special=params.skip_special_tokens,
            seed=params.seed,
            token_by_token=request.token_by_token,
        )
