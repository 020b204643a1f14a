"""The operators' port: /metrics, /healthz and /readyz, over plain HTTP.

Knows the paths and whom to ask. Does not know what a metric is, nor what makes a worker ready.
Keeps true: it runs on a thread and an event loop of its own, so whoever reads slowly holds up
nobody; a connection is one request and lasts a few seconds at most; there are never many of them,
and where one is too many the oldest goes, which is one that dawdles; metrics are not collected more
often than anybody can need.
"""

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from types import TracebackType
from typing import Self

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONNECTIONS = 32
SECONDS = 5.0  # of one connection
FRESH = 0.1  # seconds that the collected metrics are good for
_HEAD = 8192  # bytes of a request
_TEXT = "text/plain; charset=utf-8"

Page = tuple[HTTPStatus, str, bytes]


class OperationsServer:
    """Listens from the beginning; answers until `close`. Raises OSError naming the address."""

    def __init__(
        self, address: str, *, metrics: Callable[[], bytes], ready: Callable[[], bool]
    ) -> None:
        self._metrics, self._ready = metrics, ready
        self._collected, self._collected_at = b"", -FRESH
        self._open: dict[asyncio.StreamWriter, None] = {}  # in the order in which they came
        self._socket = _listening(address)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="operations", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What follows runs on the thread.

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket, limit=_HEAD)
        await self._over.wait()
        server.close()
        for writer in self._open:
            writer.transport.abort()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        # Who is too slow, says too much or is gone gets no answer: the connection is closed.
        gone = (TimeoutError, ConnectionError, asyncio.IncompleteReadError)
        try:
            with contextlib.suppress(*gone, asyncio.LimitOverrunError):
                async with asyncio.timeout(SECONDS):
                    writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    def _answer(self, head: bytes) -> bytes:
        method, path = _asked(head)
        status, kind, body = self._page(method, path)
        lines = [
            f"HTTP/1.1 {status} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(["Allow: GET, HEAD"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []),
        ]
        said = b"" if method == "HEAD" else body
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode() + said

    def _page(self, method: str, path: str) -> Page:
        if method not in ("GET", "HEAD"):
            wrong = HTTPStatus.METHOD_NOT_ALLOWED if method else HTTPStatus.BAD_REQUEST
            return _words(wrong, wrong.phrase)
        if path == "/healthz":
            return _words(HTTPStatus.OK, "alive")
        if path == "/readyz":
            if self._ready():
                return _words(HTTPStatus.OK, "ready")
            return _words(HTTPStatus.SERVICE_UNAVAILABLE, "not ready")
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, self._text()
        return _words(HTTPStatus.NOT_FOUND, "there is /metrics, /healthz and /readyz")

    def _text(self) -> bytes:
        now = time.monotonic()
        if now - self._collected_at >= FRESH:
            self._collected, self._collected_at = self._metrics(), now
        return self._collected


def _listening(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        # What create_server says of it has Python's own account of the address.
        number = error.errno or 0
        what = os.strerror(number) if number in errno.errorcode else error.strerror
        raise OSError(f"{address}: {what or error}") from error


def _asked(head: bytes) -> tuple[str, str]:
    """Method and path, or twice nothing where this is not HTTP."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


def _words(status: HTTPStatus, text: str) -> Page:
    return status, _TEXT, f"{text}\n".encode()
