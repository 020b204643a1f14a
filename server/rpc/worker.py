"""One worker process: its listeners, its way into service and out of it.

Knows listeners and signals. Does not know engines. Keeps true: nobody is answered before a first
request went all the way; health says SERVING only while requests are admitted; going out of service
is, in this order: health NOT_SERVING, admitting still for a grace that lets routers notice,
refusing, finishing what runs until a timeout, ending the rest, and the engine last; a second signal
skips the waiting, and none changes the exit code.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Sequence

from grpc_health.v1 import health_pb2

from runtime.request import MAX_ANSWERS
from server.config import ServeConfig
from server.rpc.caller import tenant
from server.rpc.listener import Interceptors, Listener, Status
from server.rpc.served import Served
from server.rpc.warming import warm

SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_FAILURE = 1
CALL = "fourstep.v1.Control/Drain"
POLL = 0.1  # seconds between looks at whether the engine still runs
log = logging.getLogger(__name__)


class Worker:
    """Serves until `drain`, a signal or the engine's failure; `run` returns the exit code.

    `interceptors` are those of a listener, by its address, that see every call of it.
    """

    def __init__(
        self,
        served: Served,
        config: ServeConfig,
        *,
        interceptors: Interceptors = lambda _: (),
    ) -> None:
        self._served = served
        self._answers = min(config.model.slots, config.limits.queued, MAX_ANSWERS)
        self._leave = asyncio.Event()
        self._hurry = asyncio.Event()
        self._signalled = False
        self._told = dict[str, str]()
        self._signals: tuple[signal.Signals, ...] = ()
        self._grace, self._timeout = config.drain.grace_s, config.drain.timeout_s
        self.listeners = tuple(
            Listener(one, config.limits, served, drain=self.drain, interceptors=interceptors)
            for one in config.listeners
        )

    def drain(
        self, grace: float | None = None, timeout: float | None = None, *, by: str = CALL
    ) -> None:
        """Begin to leave; again: at once. The log says who told it so: the call's tenant or what
        `by` says."""
        who = {"by": by, "tenant": tenant()}
        if self._leave.is_set():
            if not self._hurry.is_set():
                log.info("leaving at once", extra=who)
            self._hurry.set()
            return
        self._told = who
        self._grace = self._grace if grace is None else grace
        self._timeout = self._timeout if timeout is None else timeout
        self._leave.set()

    def signalled(self, number: int = signal.SIGTERM) -> None:
        """Begin to leave; again: at once. The first is a supervisor's, who may not know that the
        worker was told to leave already."""
        if self._signalled or not self._leave.is_set():
            self.drain(by=signal.Signals(number).name)
        self._signalled = True

    async def start(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        """Into service; `signals` are those that drain. Raises ServiceFailedError where the engine
        cannot answer."""
        loop, self._signals = asyncio.get_running_loop(), tuple(signals)
        for number in self._signals:
            # No handler of the loop's, which would be gone before the process is.
            signal.signal(number, lambda n, _: loop.call_soon_threadsafe(self.signalled, n))
        try:
            await warm(self._served, answers=self._answers)
        except BaseException:
            await self._end()
            raise
        for listener in self.listeners:
            await listener.start()
        await self._say(health_pb2.HealthCheckResponse.SERVING)

    async def run(self) -> int:
        """Until the end of service. Exit code 1 where the engine failed."""
        watch = asyncio.create_task(self._watch())
        await self._leave.wait()
        watch.cancel()
        self._served.leaving = True
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)
        failed = self._served.service.fault is not None
        if failed:
            log.error("the engine failed", exc_info=self._served.service.fault)
        else:
            seconds = {"grace_s": self._grace, "timeout_s": self._timeout}
            log.info("draining", extra=seconds | self._told)
            await self._unless_hurried(asyncio.sleep(self._grace))
        self._served.draining = True
        if not failed:
            await self._unless_hurried(asyncio.wait_for(self._served.idle(), self._timeout))
        self._served.cancel_all()
        await self._end()
        log.info("stopped")
        # It may have failed on the way out, too.
        return 0 if self._served.service.fault is None else EXIT_FAILURE

    async def _end(self) -> None:
        await asyncio.gather(*(listener.stop(grace=1.0) for listener in self.listeners))
        await asyncio.to_thread(self._served.service.close, 0.0)
        for number in self._signals:
            signal.signal(number, signal.SIG_IGN)  # nothing is left to be skipped

    async def _watch(self) -> None:
        while self._served.service.fault is None:
            await asyncio.sleep(POLL)
        self.drain()

    async def _say(self, status: Status) -> None:
        for listener in self.listeners:
            await listener.say(status)

    async def _unless_hurried(self, waiting: Awaitable[object]) -> None:
        """Wait for it, or until someone is in a hurry."""
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._hurry.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await task
