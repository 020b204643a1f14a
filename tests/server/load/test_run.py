"""What is sent and when, against a worker that stalls: prompts, interrupts, times that count."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from fourstep.v1 import inference_pb2 as pb
from fourstep.v1 import inference_pb2_grpc as pb_grpc

from server.load.plan import Job, Lengths, Load
from server.load.run import Outcome, Sender
from server.load.texts import Texts

TEXTS = Texts(ids=tuple(range(100, 200)), bos=1)
STALL = 0.2


class Stalling(pb_grpc.InferenceServicer):
    """Answers with two messages; the event loop that it shares with its client stands still for
    STALL seconds at the third request."""

    def __init__(self) -> None:
        self.asked: list[pb.GenerateRequest] = []
        self.forever = False

    async def Generate(
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.asked.append(request)
        if len(self.asked) == 3:
            time.sleep(STALL)
        yield pb.GenerateResponse(token_ids=[1])
        if self.forever and len(self.asked) > 3:
            await asyncio.sleep(3600)
        usage = pb.Usage(prompt_tokens=4, steps=1)
        yield pb.GenerateResponse(token_ids=[2, 3], end=pb.End(usage=usage))


async def sent(load: Load, servicer: Stalling, *, stop: bool = False) -> list[Outcome]:
    server = grpc.aio.server()
    pb_grpc.add_InferenceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            sender = Sender(
                channel=channel, metadata=(), texts=TEXTS, temperature=0.5, timeout=60.0
            )
            told = [0]
            task = asyncio.create_task(sender.run(load, lambda over, open_: told.append(over)))
            while stop and (len(servicer.asked) < 5 or told[-1] < 2):
                await asyncio.sleep(0.01)
            if stop:
                task.cancel()
            return await task
    finally:
        await server.stop(None)


def load(*, requests: int = 8, **given: Any) -> Load:
    lengths = Lengths.parse("4", "--x")
    return Load(prompt=lengths, answer=lengths, requests=requests, **given)


def test_what_is_asked_is_the_plan() -> None:
    servicer, plan = Stalling(), load(concurrency=1, seed=5)
    outcomes = asyncio.run(sent(plan, servicer))
    warm, *asked = servicer.asked
    assert warm.sampling.max_tokens == 2
    for job, request in zip(plan.jobs(), asked, strict=True):
        assert list(request.prompt.token_ids.ids) == TEXTS.prompt(job)
        assert request.sampling.seed == job.seed
        assert request.sampling.max_tokens == 4
        assert request.sampling.ignore_eos
        assert request.sampling.temperature == 0.5
    assert [outcome.index for outcome in outcomes] == list(range(8))
    assert {(tuple(one.tokens), one.steps, one.status) for one in outcomes} == {((1, 2), 1, "OK")}


def test_in_an_open_loop_a_stall_counts_against_every_request_that_was_due() -> None:
    """The generator stands still too, and sends late what was due meanwhile: those waited."""
    outcomes = asyncio.run(sent(load(rate=100.0, requests=32), Stalling()))
    waited = [one for one in outcomes if one.sent - one.due > STALL / 2]
    assert len(waited) >= 3
    assert all(one.times[0] - one.due >= one.sent - one.due > STALL / 2 for one in waited)


def test_in_a_closed_loop_a_request_is_due_when_it_is_sent() -> None:
    outcomes = asyncio.run(sent(load(concurrency=2), Stalling()))
    assert all(one.due <= one.sent for one in outcomes)
    later = [one.due for one in outcomes[2:]]
    assert min(later) >= min(one.ended for one in outcomes)


@pytest.mark.parametrize("loop", [{"rate": 1000.0}, {"concurrency": 8}])
def test_an_interrupt_leaves_what_has_ended(loop: dict[str, Any]) -> None:
    servicer = Stalling()
    servicer.forever = True
    outcomes = asyncio.run(sent(load(**loop), servicer, stop=True))
    assert [one.status for one in outcomes] == ["OK", "OK"]


def test_a_prompt_is_cut_from_the_text_and_goes_on_at_its_beginning() -> None:
    job = Job(index=0, due=0.0, prompt_tokens=5, answer_tokens=1, place=0.98, seed=1)
    assert TEXTS.prompt(job) == [1, 198, 199, 100, 101]
