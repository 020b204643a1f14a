"""The soak itself: rounds of mixed load on one worker process, each ended by a look at it at rest.

Knows the worker's process, users and failures to inject. Keeps true: at the end of a round nothing
is open, every slot and block is back, memory and descriptors are what they were, and health says
SERVING; the first wrong thing ends the soak by name. A round follows from the seed and its number.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtime.failpoints import ONE_CALL
from tests.server.abuse.process import POOL, Measured, WorkerProcess, log_of, worker_process
from tests.soak.asks import MARK, Answer, Ask, answers_of, asks
from tests.soak.users import Tally, User

TENANTS = {"red": "r" * 24, "green": "g" * 24}
GROWTH_MIB = 24.0  # between rounds at rest, once the worker is warm
WARM = 2  # rounds after which it is
Way = tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, kw_only=True)
class Load:
    """`users` at a time; `asks` different requests of `most_tokens`; a failure about every
    `failure_s` seconds; `seed` says all the rest."""

    users: int
    asks: int
    most_tokens: int
    failure_s: float
    seed: int


def soak_file(
    folder: Path, checkpoint: Path, *, compiler: str, context: int, slots: int, queued: int
) -> Path:
    """A configuration: a listener for everybody, and one for those with a name."""
    tokens, file = folder / "tokens", folder / "soak.toml"
    tokens.write_text("".join(f"{name} {token}\n" for name, token in TENANTS.items()))
    tokens.chmod(0o600)
    listener = '[[listeners]]\naddress = "127.0.0.1:0"\n'
    file.write_text(
        f'[model]\ncheckpoint = "{checkpoint}"\ncompiler = "{compiler}"\ncontext = {context}\n'
        f'slots = {slots}\n[limits]\nqueued = {queued}\n{listener}{listener}tokens = "{tokens}"\n'
        '[operations]\naddress = "127.0.0.1:0"\nlog_format = "json"\n',
        encoding="utf-8",
    )
    return file


def soak(
    config: Path,
    load: Load,
    *,
    rounds: Sequence[int],
    seconds: float,
    report: Callable[[str], None],
) -> None:
    """Rounds of so many seconds. AssertionError with what was wrong."""
    with worker_process(config) as process:
        chance = random.Random(load.seed)
        known = [(one, alone(process, one)) for one in asks(chance, load.asks, load.most_tokens)]
        warm: Measured | None = None
        for count, number in enumerate(rounds, start=1):
            began, tally = time.monotonic(), Tally()
            round_load = _Round(process, load, known, random.Random(f"{load.seed} {number}"), tally)
            asyncio.run(round_load.run(seconds))
            rest = process.at_rest()
            took = time.monotonic() - began
            told = ", ".join(f"{name} {count}" for name, count in sorted(tally.counts.items()))
            report(
                f"round {number} (seed {load.seed}), {took:.0f} s: {told}; at rest "
                f"{rest.memory_mib:.0f} MiB, {rest.descriptors} descriptors, {rest.threads} threads"
            )
            assert not tally.wrong, "\n".join(tally.wrong[:5])
            assert MARK not in log_of(config).read_text(encoding="utf-8"), "a prompt is in the log"
            _check_serving(process)
            if count <= WARM or warm is None:
                warm = rest
            assert rest.memory_mib < warm.memory_mib + GROWTH_MIB
            assert rest.descriptors <= warm.descriptors + 2
            assert rest.threads <= warm.threads + POOL


def alone(process: WorkerProcess, ask: Ask) -> list[Answer]:
    return answers_of(list(process.inference.Generate(ask.alone(), timeout=300)), ask.n)


def _check_serving(process: WorkerProcess) -> None:
    stub: Any = health_pb2_grpc.HealthStub(process.channel)
    found = stub.Check(health_pb2.HealthCheckRequest(service="fourstep.v1.Inference"))
    assert found.status == health_pb2.HealthCheckResponse.SERVING


@dataclass(frozen=True)
class _Round:
    process: WorkerProcess
    load: Load
    known: Sequence[tuple[Ask, list[Answer]]]
    chance: random.Random
    tally: Tally

    async def run(self, seconds: float) -> None:
        ways, end = self._ways(), asyncio.get_running_loop().time() + seconds
        users = [self._user(number, ways) for number in range(self.load.users)]
        await asyncio.gather(self._fail(end), *(user.live(end) for user in users))
        for channel in {channel for channel, _ in ways}:
            await channel.close()

    def _ways(self) -> list[Way]:
        everybody, named = self.process.addresses
        channel = grpc.aio.insecure_channel(named)
        tokens = (("authorization", f"Bearer {token}") for token in TENANTS.values())
        return [(grpc.aio.insecure_channel(everybody), ()), *((channel, (one,)) for one in tokens)]

    def _user(self, number: int, ways: Sequence[Way]) -> User:
        own = random.Random(self.chance.random())
        return User(name=f"u{number}", ways=ways, asks=self.known, chance=own, tally=self.tally)

    async def _fail(self, end: float) -> None:
        """Arm one failure after the other; the last one may be met by nobody, and is disarmed."""
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            point = f"{self.chance.choice(ONE_CALL)}={self.chance.randint(1, 40)}"
            await asyncio.to_thread(self.process.measure, point)
            await asyncio.sleep(min(self.load.failure_s, max(0.0, end - loop.time())))
        await asyncio.to_thread(self.process.measure)
