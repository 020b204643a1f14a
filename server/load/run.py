"""A load put on a worker, and when everything of each request came.

Knows calls and the clock. Does not judge. Keeps true: in an open loop a request's times count from
when it was due, not from when it could be sent, so a worker that holds up the generator cannot look
better for it; no request waits for another one's end but in a closed loop.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field

import grpc
import grpc.aio
from fourstep.v1 import inference_pb2 as pb
from fourstep.v1 import inference_pb2_grpc

from server.client.connection import Metadata
from server.load.plan import Job, Load
from server.load.texts import Texts

One = Callable[[Job, float], Coroutine[None, None, None]]

WARM = 2  # tokens of the request that opens the connection


@dataclass(kw_only=True)
class Outcome:
    """One request, times in seconds from the start of the load. `times`, `tokens`: of each
    message. `status`: OK or the name of what it ended with."""

    index: int
    due: float
    sent: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    ended: float = 0.0
    status: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Sender:
    """`temperature` and `timeout` (in seconds) are those of every request."""

    channel: grpc.aio.Channel
    metadata: Metadata
    texts: Texts
    temperature: float
    timeout: float

    async def run(self, load: Load, progress: Callable[[int, int], object]) -> list[Outcome]:
        """What ended, in the order of the plan. `progress` is told how many ended and are open.

        Where the task is cancelled, what has ended by then. Raises grpc.aio.AioRpcError where not
        even a first request, which is not counted, is answered.
        """
        await self._warm()
        over: list[Outcome] = []
        begun, start = 0, time.perf_counter()

        async def one(job: Job, due: float) -> None:
            nonlocal begun
            begun += 1
            over.append(await self._one(job, due, start))
            progress(len(over), begun - len(over))

        with contextlib.suppress(asyncio.CancelledError):
            if load.concurrency is None:
                await _open_loop(load.jobs(), one, start)
            else:
                await _closed_loop(load.jobs(), one, start, load.concurrency, load.until)
        return sorted(over, key=lambda outcome: outcome.index)

    async def _warm(self) -> None:
        stub = inference_pb2_grpc.InferenceStub(self.channel)
        prompt = pb.Prompt(token_ids=pb.TokenIds(ids=self.texts.ids[:WARM]))
        request = pb.GenerateRequest(prompt=prompt, sampling=pb.SamplingParams(max_tokens=WARM))
        async for _ in stub.Generate(request, metadata=self.metadata, timeout=self.timeout):
            pass

    async def _one(self, job: Job, due: float, start: float) -> Outcome:
        request = pb.GenerateRequest(
            prompt=pb.Prompt(token_ids=pb.TokenIds(ids=self.texts.prompt(job))),
            sampling=pb.SamplingParams(
                max_tokens=job.answer_tokens,
                ignore_eos=True,
                temperature=self.temperature,
                seed=job.seed,
            ),
        )
        stub = inference_pb2_grpc.InferenceStub(self.channel)
        outcome = Outcome(index=job.index, due=due, sent=time.perf_counter() - start)
        call = stub.Generate(request, metadata=self.metadata, timeout=self.timeout)
        try:
            async for message in call:
                outcome.times.append(time.perf_counter() - start)
                outcome.tokens.append(len(message.token_ids))
                if message.HasField("end"):
                    usage = message.end.usage
                    outcome.prompt_tokens = usage.prompt_tokens
                    outcome.cached_tokens = usage.cached_tokens
                    outcome.steps = usage.steps
            outcome.status = grpc.StatusCode.OK.name
        except grpc.aio.AioRpcError as error:
            outcome.status = error.code().name
        outcome.ended = time.perf_counter() - start
        return outcome


async def _open_loop(jobs: Iterator[Job], one: One, start: float) -> None:
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            await asyncio.sleep(job.due - (time.perf_counter() - start))
            group.create_task(one(job, job.due))


async def _closed_loop(
    jobs: Iterator[Job], one: One, start: float, concurrency: int, until: float
) -> None:
    async def keep_one_open() -> None:
        for job in jobs:
            now = time.perf_counter() - start
            if now >= until:
                return
            await one(job, now)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(keep_one_open())
