"""A client that costs next to nothing: gRPC calls over one plain HTTP/2 connection.

Knows frames, HPACK and how gRPC frames messages. Does not know deadlines, retries or flow control:
the server may always send. Keeps true: it runs no thread and does nothing but read and write, so
that what is timed is the server.
"""

import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from hpack import Decoder, Encoder

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_INITIAL_WINDOW, _MOST = 4, 2**31 - 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_CHUNK = 2**16


@dataclass(frozen=True)
class Came:
    """On a call: a message, or its status at its end."""

    call: int
    message: bytes | None = None
    status: int | None = None


class Lean:
    """A connection. Raises OSError; ConnectionError where the server ends it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._address, self._blocks = address, dict[str, bytes]()
        self._decoder, self._undecoded = Decoder(), list[bytes]()
        self._bytes, self._last = bytearray(), -1
        self._messages: dict[int, bytearray] = {}
        settings = struct.pack(">HI", _INITIAL_WINDOW, _MOST)
        window = struct.pack(">I", _MOST - 65535)
        self._socket.sendall(
            _PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW, 0, 0, window)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def start(self, method: str, message: bytes) -> int:
        """Begin a call, `/package.Service/Method`; its number."""
        self._last += 2
        block = self._blocks.get(method) or self._block(method)
        data = struct.pack(">BI", 0, len(message)) + message
        self._messages[self._last] = bytearray()
        self._socket.sendall(
            _frame(_HEADERS, _END_HEADERS, self._last, block)
            + _frame(_DATA, _END_STREAM, self._last, data)
        )
        return self._last

    def _block(self, method: str) -> bytes:
        """The headers of a call, which are the same each time: sensitive ones never depend on what
        was sent before."""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": self._address,
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = Encoder().encode([(*item, True) for item in headers.items()])
        self._blocks[method] = block
        return block

    def receive(self, timeout: float | None = None) -> list[Came]:
        """What has come next of all calls; may be nothing. Waits so many seconds at most."""
        if timeout is not None and not select.select([self._socket], [], [], timeout)[0]:
            return []
        data = self._socket.recv(_CHUNK)
        if not data:
            raise ConnectionError("the server has hung up")
        self._bytes += data
        return [came for frame in self._frames() for came in self._took(*frame)]

    def call(self, method: str, message: bytes) -> Iterator[bytes]:
        """The messages of one call, as they come. Raises RuntimeError for a status but OK."""
        number = self.start(method, message)
        while True:
            for came in self.receive():
                if came.call == number and came.message is not None:
                    yield came.message
                elif came.call == number:
                    if came.status != 0:
                        raise RuntimeError(f"{method} ended with status {came.status}")
                    return

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of each that is here whole."""
        while len(self._bytes) >= 9:
            end = 9 + int.from_bytes(self._bytes[:3], "big")
            if len(self._bytes) < end:
                return
            kind, flags = self._bytes[3:5]
            stream, payload = int.from_bytes(self._bytes[5:9], "big"), bytes(self._bytes[9:end])
            del self._bytes[:end]
            yield kind, flags, stream, payload

    def _took(self, kind: int, flags: int, stream: int, payload: bytes) -> Iterator[Came]:
        if kind == _DATA:
            yield from self._whole(stream, payload)
        elif kind == _HEADERS:
            assert flags & _END_HEADERS, "a header block in several frames"
            self._undecoded.append(payload)
            if flags & _END_STREAM:
                del self._messages[stream]
                yield Came(stream, status=self._status())
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            answer = payload if kind == _PING else b""
            self._socket.sendall(_frame(kind, _ACK, 0, answer))
        elif kind in (_RESET, _GOAWAY):
            raise ConnectionError("the server has ended it")

    def _status(self) -> int:
        """Of the call whose trailers came last. Decoding waits until then, since a call's first
        headers stand before its first message."""
        headers = [self._decoder.decode(block) for block in self._undecoded][-1]
        self._undecoded.clear()
        return int({str(key): str(value) for key, value in headers}["grpc-status"])

    def _whole(self, stream: int, payload: bytes) -> Iterator[Came]:
        kept = self._messages[stream]
        kept += payload
        while len(kept) >= 5 and len(kept) >= (end := 5 + int.from_bytes(kept[1:5], "big")):
            yield Came(stream, message=bytes(kept[5:end]))
            del kept[:end]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = struct.pack(">IBI", len(payload) << 8 | kind, flags, stream)
    return head + payload
