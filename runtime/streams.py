"""One request's outputs as they come, for a thread and for an event loop.

Knows the service only through `send`. Keeps true: outputs come in order and none after the last
answer's end; who stops listening cancels, and who does not take what comes is taken for one who
has; nothing here makes the engine's thread wait, since what is not taken is kept.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from runtime.answer import Output, Request

if TYPE_CHECKING:
    from runtime.service import Prepared, Submission

MOST_KEPT = 4096  # outputs, a minute or so of them
SHORT_PROMPT = 4096  # tokens that are checked in less than another thread's turn


class Sender(Protocol):
    """A Service."""

    def send(
        self,
        request: Request,
        deliver: Callable[[Output], None],
        prepared: "Prepared | None" = None,
    ) -> "Submission": ...

    def prepare(self, request: Request) -> "Prepared": ...


class _Listener:
    """What both streams know: the request, and how many of its answers have not ended."""

    def __init__(self, submission: "Submission") -> None:
        self._submission = submission
        self._left = submission.request.params.n

    def cancel(self) -> None:
        """End the answers that have not ended; their ends still come."""
        if self._left:
            self._submission.cancel()

    def _take(self, output: Output) -> Output:
        self._left -= output.end is not None
        return output


class Stream(_Listener):
    """Iterates over outputs, for one thread. As a context manager it cancels at the exit."""

    def __init__(self, submission: "Submission", queue: SimpleQueue[Output]) -> None:
        super().__init__(submission)
        self._queue = queue

    @classmethod
    def open(cls, service: Sender, request: Request) -> "Stream":
        """Raises as Service.submit."""
        queue: SimpleQueue[Output] = SimpleQueue()
        submission = service.send(request, queue.put)
        try:
            submission.admitted.result()
        except BaseException:  # an interrupt too: then it may have been admitted
            submission.cancel()
            raise
        return cls(submission, queue)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Output:
        if not self._left:
            raise StopIteration
        return self._take(self._queue.get())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()


class _Kept(asyncio.Queue[Output | BaseException]):
    """`overrun`: more came than is kept."""

    overrun = False


class AsyncStream(_Listener):
    """As Stream, for one task of an event loop. Of a reader that falls MOST_KEPT outputs behind the
    request is cancelled."""

    def __init__(self, submission: "Submission", queue: _Kept) -> None:
        super().__init__(submission)
        self._queue = queue

    @property
    def overrun(self) -> bool:
        """Whether that happened."""
        return self._queue.overrun

    @classmethod
    async def open(cls, service: Sender, request: Request) -> "AsyncStream":
        """Raises ServiceClosedError, ServiceFailedError; what else Service.submit raises, the first
        output does."""
        loop = asyncio.get_running_loop()
        queue = _Kept()

        def keep(output: Output) -> None:
            queue.put_nowait(output)
            if queue.qsize() > MOST_KEPT and not queue.overrun:
                queue.overrun = True
                submission.cancel()

        def deliver(output: Output) -> None:
            loop.call_soon_threadsafe(keep, output)

        def admitted(done: Future[None]) -> None:
            # The loop is not woken for what it need not know: it would take the interpreter from
            # the engine's thread, which is about to run the prompt.
            if error := done.exception():
                loop.call_soon_threadsafe(queue.put_nowait, error)

        # Compiling a constraint or checking a long prompt must not hold up the loop, and the first
        # may be given up half way.
        slow = request.params.constraint is not None or len(request.prompt) > SHORT_PROMPT
        prepared = await asyncio.to_thread(service.prepare, request) if slow else None
        submission = service.send(request, deliver, prepared)
        submission.admitted.add_done_callback(admitted)
        return cls(submission, queue)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        if not self._left:
            raise StopAsyncIteration
        came = await self._queue.get()
        if isinstance(came, BaseException):
            self._left = 0
            raise came
        return self._take(came)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()
