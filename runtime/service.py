"""The engine's own thread: requests come in from any thread, outputs go out as they are made.

Knows one scheduler, which it has made on its thread, where torch is used and nowhere else. Does not
know transports or event loops: outputs are handed to a callback that must not wait. Keeps true:
each answer's outputs come in order and end once, whatever fails; a request or a cancellation that
comes too late is refused or does nothing; nobody waits on a thread that is gone; with nothing to do
the thread sleeps; Python does not end beside the thread, since torch would end the process.
"""

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Self

from runtime.answer import Answer, Output, Request
from runtime.engine import Engine
from runtime.failpoints import reach
from runtime.observer import Nobody, Observer
from runtime.scheduler import Scheduler
from runtime.streams import Stream
from runtime.submission import Deliver, Submission
from runtime.turns import aside

Prepared = list[Answer] | Exception


class ServiceClosedError(RuntimeError):
    """The service takes no more requests, because it was told so."""


class ServiceFailedError(RuntimeError):
    """The service takes no more requests, because its engine failed; that is the cause."""


_services: "weakref.WeakSet[Service]" = weakref.WeakSet()


class Service:
    """One scheduler, made by `factory` on the thread that will run it.

    Raises what `factory` raised. As a context manager it lets all answers finish, or cancels them
    where the block raised.
    """

    def __init__(
        self, factory: Callable[[], Scheduler], *, observer: Observer | None = None
    ) -> None:
        self.fault: BaseException | None = None
        self._observer: Observer = observer or Nobody()
        self._closing = False
        self._ended = threading.Event()  # a join that is interrupted takes the thread for gone
        self._lock = threading.Lock()  # of what says whether the inbox is still read
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._live: dict[str, Submission] = {}
        made: Future[Scheduler] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(factory, made), name="engine", daemon=True
        )
        self._thread.start()
        _services.add(self)
        try:
            atexit.register(self._leave)  # for who does not close, or is told to leave twice
            self._scheduler = made.result()
        except BaseException:  # a signal's as well, while the thread goes on
            self.close(0.0)
            raise

    def submit(self, request: Request) -> Stream:
        """Queue a request; its outputs. Waits for the step that is running.

        Raises ValueError for what can never run, QueueFullError, ServiceClosedError,
        ServiceFailedError.
        """
        return Stream.open(self, request)

    def send(
        self, request: Request, deliver: Deliver, prepared: Prepared | None = None
    ) -> Submission:
        """As `submit`, without waiting: whether the request was refused is told by `admitted`.

        `deliver` is called on the engine's thread with each output and must not wait; where it
        raises, nobody listens any more, and the request is cancelled. Raises ServiceClosedError,
        ServiceFailedError.
        """
        submission = Submission(self, request, deliver)
        if prepared is None:
            prepared = self.prepare(request)
        with self._lock:
            self._check_open()
            self._inbox.put(lambda: self._admit(submission, prepared))
        return submission

    def prepare(self, request: Request) -> Prepared:
        """What takes long of a request with a constraint, on the caller's thread."""
        try:
            return self._scheduler.prepare(request)
        except Exception as error:  # the request's, whatever it is: it is refused in its turn
            return error

    def check_room(self) -> None:
        """QueueFullError if no request has a place now, so that it need not even be read."""
        self._scheduler.check_room()

    def cancel(self, request_id: str) -> None:
        """End a request in any state, if there is one: its answers are cancelled within a step."""
        self._post(lambda: self._scheduler.cancel(request_id))

    def drop(self, submission: Submission) -> None:
        """See Submission.cancel."""
        self._post(lambda: self._drop(submission))

    def forget(self) -> Future[bool]:
        """Empty the prefix cache of what no running answer uses; whether nothing was left.

        Raises ServiceClosedError, ServiceFailedError.
        """
        done: Future[bool] = Future()
        with self._lock:
            self._check_open()
            self._inbox.put(lambda: self._forget(done))
        return done

    @property
    def engine(self) -> Engine:
        """To look at, not to run."""
        return self._scheduler.engine

    @property
    def load(self) -> dict[str, int]:
        """Answers by phase, and blocks of the full pool, there and in use. From any thread."""
        pool = self._scheduler.seats.memory.cache.full
        return {**self._scheduler.load, "blocks": pool.size, "blocks_used": pool.used}

    def close(self, grace: float | None = None) -> None:
        """Take no more requests, let answers finish, cancel them after `grace` seconds (None:
        never), end the thread. May be called again, from another thread too, with less grace."""
        assert threading.current_thread() is not self._thread, "it would wait for itself"
        with self._lock:
            self._closing = True
        self._post(lambda: None)  # wakes it up
        self._ended.wait(grace)
        self._post(self._cancel_all)
        self._ended.wait()
        self._thread.join()
        atexit.unregister(self._leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(None if kind is None else 0)

    def _leave(self) -> None:
        """As Python ends, however often it is told to meanwhile."""
        while not self._ended.is_set():
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                self.close(0.0)

    def _check_open(self) -> None:
        if self.fault is not None:
            raise ServiceFailedError(_message(self.fault)) from self.fault
        if self._closing:
            raise ServiceClosedError("the service is closed")

    def _post(self, command: Callable[[], object]) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._inbox.put(command)

    # What follows runs on the engine's thread.

    def _run(self, factory: Callable[[], Scheduler], made: Future[Scheduler]) -> None:
        try:
            scheduler = self._scheduler = factory()
            self._observer.watch(scheduler)
        except BaseException as error:
            made.set_exception(error)
            self._ended.set()
            return
        made.set_result(scheduler)
        try:
            while self._turn(scheduler):
                pass
        except BaseException as error:
            self._fail(error)
        finally:
            with self._lock:
                self._closing = True
                self._ended.set()
            self._obey()  # what came meanwhile is refused

    def _turn(self, scheduler: Scheduler) -> bool:
        """Some work; False when there will be none any more."""
        if scheduler.idle and not self._closing:
            with aside():
                command = self._inbox.get()
            command()
        self._obey()
        if scheduler.idle:
            return not self._closing
        reach("engine.lost")
        self._hand_out(scheduler.step())
        return True

    def _obey(self) -> None:
        """Run all commands that are there."""
        while not self._inbox.empty():
            self._inbox.get()()

    def _admit(self, submission: Submission, prepared: Prepared) -> None:
        if not submission.admitted.set_running_or_notify_cancel():
            return  # whoever asked has left before it was their turn
        try:
            if self._ended.is_set():
                self._check_open()
            if (request_id := submission.request.id) in self._live:
                raise ValueError(f"request id {request_id!r} is in use")  # its end is on the way
            if isinstance(prepared, Exception):
                raise prepared
            self._scheduler.submit(submission.request, prepared)
        except Exception as error:  # nothing was queued: it is the request's, whatever it is
            submission.admitted.set_exception(error)
            return
        self._live[submission.request.id] = submission
        submission.admitted.set_result(None)

    def _drop(self, submission: Submission) -> None:
        if self._live.get(submission.request.id) is submission:
            self._scheduler.cancel(submission.request.id)

    def _forget(self, done: Future[bool]) -> None:
        if done.set_running_or_notify_cancel():
            cache = self._scheduler.seats.memory.cache
            cache.clear()
            done.set_result(len(cache) == 0)

    def _cancel_all(self) -> None:
        for request_id in list(self._live):
            self._scheduler.cancel(request_id)

    def _hand_out(self, outputs: Sequence[Output]) -> None:
        self._observer.seen(outputs)
        for output in outputs:
            self._deliver(output)

    def _deliver(self, output: Output) -> None:
        submission = self._live[output.request_id]
        if output.end is not None:
            submission.open.remove(output.index)
        if not submission.open:
            del self._live[output.request_id]
        try:
            submission.deliver(output)
        except Exception:  # for example: its event loop is closed
            submission.deliver = lambda _: None
            submission.cancel()

    def _fail(self, fault: BaseException) -> None:
        """End everything: what the scheduler still can, then what is left."""
        with self._lock:
            self.fault = fault
        message, outputs = _message(fault), []
        try:
            outputs = self._scheduler.fail_all(message)
            self._observer.seen(outputs)
        except Exception as error:
            fault.add_note(f"and then: {type(error).__name__}: {error}")
        for output in outputs:
            self._deliver(output)
        for submission in list(self._live.values()):
            for index in sorted(submission.open):
                self._deliver(submission.failed(index, message))


def _forked() -> None:
    """The thread is the parent's: here every service is closed, whoever held its lock."""
    for service in _services:
        service._lock, service._ended, service._closing = threading.Lock(), threading.Event(), True
        service._ended.set()


os.register_at_fork(after_in_child=_forked)


def _message(fault: BaseException) -> str:
    return f"the engine failed: {type(fault).__name__}: {fault}"
