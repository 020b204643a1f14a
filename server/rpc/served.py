"""What the servicers of one process share: the model being served and the requests that are open.

Knows the runtime's service and the checkpoint's text side. Does not know messages of any protocol.
Keeps true: a request id is open once at a time, from the moment that it is read, so that it can be
cancelled in every state; what is asked for is checked before it is queued, and what takes long of
that holds up nobody.
"""

import asyncio
import itertools
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from graphs.config import ModelConfig
from runtime.answer import Request
from runtime.chat import Chat, ChatTemplate
from runtime.generate import check_length
from runtime.parsers.reasoning import Markers
from runtime.request import SamplingParams, check_prompt
from runtime.service import Service
from runtime.streams import AsyncStream
from runtime.tokenizer import Tokenizer
from server.rpc.caller import own_id, scoped, tenant

T = TypeVar("T")
# Bytes of a message that is read where it came: it takes less than another thread's turn, and small
# ones keep their order.
SMALL = 4096


class DrainingError(RuntimeError):
    """The worker takes no more requests: it is going out of service."""


class TenantBusyError(RuntimeError):
    """One name has as many requests open as it may."""


class CancelledRequestError(RuntimeError):
    """Somebody cancelled the request before it was queued."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who we are, for those who route, pin and compare."""

    name: str
    compiler: str
    device: str
    isa: str
    precision: str
    engines: tuple[tuple[str, bool], ...]
    artifact: str | None  # its digest; None: no artifact, the blocks run eagerly


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A prompt as tokens; `tools` are a chat's."""

    ids: tuple[int, ...]
    tools: tuple[dict[str, Any], ...] = ()
    chat: bool = False


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A message read: what it asks, and that as the runtime takes it."""

    prompt: Asked
    request: Request


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A request on its way to the queue, or in it; `key` closes it."""

    key: str
    reading: Reading
    stream: AsyncStream


class _Opening:
    """A request that the task which makes this opens; `stream`: once it is queued."""

    def __init__(self) -> None:
        self.stream: AsyncStream | None = None
        self._task, self._cancelled = asyncio.current_task(), False

    def cancel(self) -> None:
        """Whether its stream is there yet or not."""
        if self.stream is not None:
            self.stream.cancel()
        elif not self._cancelled:
            assert self._task is not None
            self._cancelled = self._task.cancel()

    def was_meant_by(self, error: BaseException) -> bool:
        """Whether the task was told to end by `cancel` alone, and goes on."""
        if not self._cancelled or not isinstance(error, asyncio.CancelledError):
            return False
        assert self._task is not None
        return self._task.uncancel() == 0


@dataclass(kw_only=True)
class Served:
    """`folder`: the checkpoint's. `context`: positions of prompt and answer. `draft_tokens`: most
    drafts a step. `queued`: answers that may wait. `tenant_requests`: open at a time for one name.
    `leaving`: health says so, and requests are still taken until `draining`. `cut`: what still ran
    was ended."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    template: ChatTemplate | None
    service: Service
    identity: Identity
    context: int
    draft_tokens: int
    slots: int
    queued: int
    tenant_requests: int
    leaving: bool = False
    draining: bool = False
    cut: bool = False
    _open: dict[str, _Opening] = field(default_factory=dict)
    _count: Iterator[int] = field(default_factory=itertools.count)

    def text(self, text: str) -> Asked:
        """A text to continue. Raises ValueError."""
        return self._checked(Asked(ids=tuple(self.tokenizer.encode(text))))

    def tokens(self, ids: tuple[int, ...]) -> Asked:
        """Ids as they are. Raises ValueError."""
        check_prompt(ids, self.config.vocab_size)
        return self._checked(Asked(ids=ids))

    def chat(self, chat: Chat) -> Asked:
        """Messages through the checkpoint's template. Raises ValueError."""
        if self.template is None:
            raise ValueError("this checkpoint has no chat template: send text or token ids")
        ids = tuple(self.tokenizer.encode(self.template.render(chat)))
        return self._checked(Asked(ids=ids, tools=chat.tools, chat=True))

    def _checked(self, asked: Asked) -> Asked:
        if len(asked.ids) >= self.context:
            raise ValueError(
                f"{len(asked.ids)} prompt tokens leave no room in a context of {self.context}"
            )
        return asked

    def room(self, asked: Asked) -> int:
        """Tokens that may follow the prompt."""
        return self.context - len(asked.ids)

    def thinks(self, asked: Asked) -> bool:
        """Whether the prompt leaves the model thinking."""
        return Markers.of(self.tokenizer, tools=False).starts_thinking(asked.ids)

    def request(
        self,
        request_id: str,
        asked: Asked,
        params: SamplingParams,
        *,
        remaining: float | None = None,
        priority: int = 0,
        salt: str = "",
        draft_tokens: int | None = None,
    ) -> Reading:
        """`remaining`: seconds until the caller's deadline. Raises ValueError."""
        # Here and not by the engine, whose context is that of its programs and may be longer.
        check_length(len(asked.ids), params.max_tokens, self.context)
        request = Request(
            # To the engine each is another one: what it still ends of a call that is over does not
            # keep the caller's id.
            id=f"{own_id(request_id)} {next(self._count)}",
            prompt=asked.ids,
            params=params,
            priority=priority,
            deadline=None if remaining is None else time.monotonic() + remaining,
            salt=scoped(salt),
            draft_tokens=draft_tokens,
        )
        return Reading(prompt=asked, request=request)

    async def open(self, request_id: str, read: Callable[[], Reading], *, size: int) -> Opened:
        """Queue the request that `read` makes of a message of `size` bytes; where there is no
        place, it is not read. To be closed at its end.

        Raises what `read` does, ValueError, DrainingError, TenantBusyError, CancelledRequestError
        and as Service.submit, or its stream does.
        """
        self.check_room()
        key = own_id(request_id)
        if key in self._open:
            raise ValueError(f"request id {request_id!r} is in use")
        opening = self._open[key] = _Opening()
        try:
            reading = await made_of(size, read)
            stream = opening.stream = await AsyncStream.open(self.service, reading.request)
        except BaseException as error:
            del self._open[key]
            if opening.was_meant_by(error):
                gone = DrainingError("draining: the request has not begun")
                raise (gone if self.cut else CancelledRequestError("cancelled")) from None
            raise
        return Opened(key=key, reading=reading, stream=stream)

    def check_room(self) -> None:
        """Whether the caller's next request would be taken, whatever it asks: DrainingError,
        TenantBusyError, QueueFullError."""
        if self.draining:
            raise DrainingError("draining: no new requests")
        if tenant():
            mine = sum(key.startswith(scoped("")) for key in self._open)
            if mine >= self.tenant_requests:
                raise TenantBusyError(f"{mine} requests of {tenant()} are open already")
        self.service.check_room()

    def close(self, key: str) -> None:
        """The call that opened the request is over; from any task."""
        self._open.pop(key).cancel()

    def cancel(self, request_id: str) -> bool:
        """End an open request of the caller; False if there is no such one."""
        opening = self._open.get(scoped(request_id))
        if opening is None:
            return False
        opening.cancel()
        return True

    def cancel_all(self) -> None:
        """Because the worker cannot wait for them."""
        self.cut = True
        for opening in list(self._open.values()):
            opening.cancel()

    async def idle(self) -> None:
        """Until no request is open."""
        while self._open:
            await asyncio.sleep(0.01)


async def made_of(size: int, read: Callable[[], T]) -> T:
    """What `read` makes of a message of so many bytes."""
    return read() if size <= SMALL else await asyncio.to_thread(read)


def new_id() -> str:
    return uuid.uuid4().hex


def seed_of(asked: int | None) -> int:
    """The caller's, or one of our own that can be told afterwards."""
    return secrets.randbits(63) if asked is None else asked
