"""What one call asked for and got, for the log line at its end.

Knows requests and outputs of the runtime. Does not know gRPC, logs or metrics. Keeps true: counts
are of what reached the call, so a client that left is told of up to there; there is no text in it,
nor a token.
"""

from contextvars import ContextVar
from dataclasses import dataclass

from runtime.answer import Output, Request
from runtime.numbers import Numbers

_ID = 128  # characters of a request's id that are logged


@dataclass(kw_only=True)
class Record:
    """`steps`: decode steps, of which `accepted` drafts came. Times are of the first answer that
    began; None: none did. `failure`: of the engine, as the caller is told."""

    request_id: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    steps: int = 0
    accepted: int = 0
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    failure: str = ""
    queued = False  # the engine has said something of it; no field, since no line tells it

    def called(self, request_id: str) -> None:
        self.request_id = request_id[:_ID]

    def asked(self, request: Request) -> None:
        self.prompt_tokens = len(request.prompt)

    def seen(self, output: Output) -> None:
        self.queued = True
        if output.begun is not None:
            self._begun(output.begun)
        if output.step is not None:
            self.answer_tokens += len(output.step.token_ids)
            self.accepted += output.step.accepted
            self.steps += output.begun is None
        if output.end is not None and output.end.reason == "failed":
            self.failure = output.end.message

    def _begun(self, numbers: Numbers) -> None:
        self.cached_tokens += numbers.cached_tokens
        if self.queue_seconds is None:
            self.queue_seconds, self.first_token_seconds = numbers.queued_s, numbers.first_token_s


_current: ContextVar[Record | None] = ContextVar("record", default=None)


def current() -> Record:
    """Of the call whose task this is; one that nobody reads where calls are not watched."""
    return _current.get() or Record()


def begin() -> Record:
    """A record for the call whose task this is."""
    record = Record()
    _current.set(record)
    return record
