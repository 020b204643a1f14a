"""Users of a soak: each asks, and then reads to the end, leaves, cancels, or has no more time.

Knows the contract's calls and the answers that are right. Keeps true: whatever was told is the
beginning of the right answer; a call that does not end well has a reason that its user knows.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from fourstep.v1 import inference_pb2 as pb
from fourstep.v1 import inference_pb2_grpc

from tests.soak.asks import Answer, Ask, answers_of, ends

FATES = ("whole", "leave", "cancel", "deadline", "slow")
_WEIGHTS = (60, 12, 12, 10, 6)
_WITHOUT_REASON = {"RESOURCE_EXHAUSTED", "INTERNAL"}  # a full queue; a failure that was injected


@dataclass(kw_only=True)
class Tally:
    """What came of all calls, by status or by `tokens`, and which were wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class User:
    """`ways`: channels to the listeners, with the metadata that each one needs."""

    name: str
    ways: Sequence[tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]]
    asks: Sequence[tuple[Ask, list[Answer]]]
    chance: random.Random
    tally: Tally

    async def live(self, until: float) -> None:
        """Ask again and again until that time of the loop."""
        count, loop = 0, asyncio.get_running_loop()
        while loop.time() < until:
            count += 1
            await self._once(f"{self.name}-{count}")
            await asyncio.sleep(self.chance.choice((0, 0, 0.01, 0.1)))

    async def _once(self, request_id: str) -> None:
        ask, right = self.chance.choice(self.asks)
        fate = self.chance.choices(FATES, _WEIGHTS)[0]
        channel, metadata = self.chance.choice(self.ways)
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        request = ask.variation(self.chance, request_id)
        timeout = self.chance.uniform(0.001, 1.0) if fate == "deadline" else None
        call = stub.Generate(request, metadata=metadata, timeout=timeout)
        messages = list[pb.GenerateResponse]()
        cancel = pb.CancelRequest(request_ids=[request_id])
        last = self.chance.randrange(4) if fate in ("leave", "cancel") else -1
        try:
            if last == 0:
                await self._end(fate, call, stub, cancel, metadata)
            async for message in call:
                messages.append(message)
                if len(messages) == last:
                    await self._end(fate, call, stub, cancel, metadata)
                if fate == "slow":
                    await asyncio.sleep(0.05)
        except (grpc.RpcError, asyncio.CancelledError):
            if asyncio.current_task().cancelling():  # pyright: ignore[reportOptionalMemberAccess]
                raise
        self._judge(fate, await call.code(), await call.details() or "", messages, ask, right)

    async def _end(self, fate: str, call: Any, stub: Any, cancel: Any, metadata: Any) -> None:
        """In the middle. Cancelling what is over, or what the worker has not seen, does nothing."""
        if fate == "leave":
            call.cancel()
        else:
            await stub.Cancel(cancel, metadata=metadata)

    def _judge(
        self,
        fate: str,
        code: grpc.StatusCode,
        details: str,
        messages: list[pb.GenerateResponse],
        ask: Ask,
        right: list[Answer],
    ) -> None:
        try:
            answers = answers_of(messages, ask.n)
            whole = code is grpc.StatusCode.OK
            _check_status(fate, code.name, details)
            assert not whole or ends(messages) == ask.n, "an answer has no end"
            for answer, correct in zip(answers, right, strict=True):
                check_beginning(answer, correct)
                assert not whole or answer == correct
        except AssertionError as error:
            self.tally.wrong.append(f"{fate}, {code.name} {details!r}: {error}: {ask.request}")
        self.tally.counts[code.name] += 1
        self.tally.counts["tokens"] += sum(len(message.token_ids) for message in messages)


def _check_status(fate: str, code: str, details: str) -> None:
    if code == "INTERNAL":
        assert details.startswith("injected failure: "), "a failure that nobody asked for"
    expected = {"leave": {"CANCELLED"}, "cancel": {"CANCELLED"}, "deadline": {"DEADLINE_EXCEEDED"}}
    allowed = {"OK"} | _WITHOUT_REASON | expected.get(fate, set())
    assert code in allowed, f"one of {sorted(allowed)} was to be expected"


def check_beginning(answer: Answer, right: Answer) -> None:
    """Whether what was told is how the right answer begins."""
    tokens, text, logprobs = answer
    assert right[0][: len(tokens)] == tokens, "other tokens"
    assert right[1].startswith(text), "another text"
    assert right[2][: len(logprobs)] == logprobs, "other logprobs"
