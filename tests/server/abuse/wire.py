"""One HTTP/2 connection to a worker, frame by frame: what a client that misbehaves may send.

Knows h2 and the framing of gRPC's messages. Does not know what is right. Keeps true: what the
server sends is read only when a test asks for it.
"""

import select
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Self, TypeVar

from fourstep.v1 import inference_pb2 as pb
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes

GENERATE = "/fourstep.v1.Inference/Generate"
TOKENIZE = "/fourstep.v1.Inference/Tokenize"
CHECK = "/grpc.health.v1.Health/Check"
E = TypeVar("E", bound=Event)


class Wire:
    """A connection whose handshake is done. `window`: bytes of a stream that the server may send
    unasked, to which it has agreed then. Nothing of what is sent is checked."""

    def __init__(self, address: str, *, window: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.h2 = H2Connection(config)
        self.h2.initiate_connection()
        self.events: list[Event] = []
        self.flush()
        if window is not None:
            # h2 tells nobody of a setting that is made before the connection is initiated.
            self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
            self.flush()
            self.read(lambda: len(self.of(SettingsAcknowledged)) == 2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        """Send what h2 has to send. Where the server has hung up, that is for `read` to find."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(self.h2.data_to_send())

    def raw(self, data: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def headers(
        self, path: str = GENERATE, *, more: Iterable[tuple[str, str]] = (), end: bool = False
    ) -> int:
        """Begin a call; its stream."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, [*call_headers(path), *more], end_stream=end)
        self.flush()
        return stream

    def call(self, message: bytes, path: str = GENERATE, *, end: bool = True) -> int:
        """A whole call; its stream."""
        stream = self.headers(path)
        self.data(stream, framed(message), end=end)
        return stream

    def data(self, stream: int, data: bytes, *, end: bool = False) -> None:
        size = self.h2.max_outbound_frame_size
        for start in range(0, max(1, len(data)), size):
            last = start + size >= len(data)
            self.h2.send_data(stream, data[start : start + size], end_stream=end and last)
        self.flush()

    def read(self, enough: Callable[[], bool], *, acknowledge: bool = True) -> None:
        """Take in what comes until there is enough of it, or the server hangs up."""
        while not enough():
            if not self._take(acknowledge=acknowledge):
                return

    def attend(self) -> None:
        """Take in what is there, without waiting: pings are answered."""
        while select.select([self.socket], [], [], 0)[0]:
            if not self._take(acknowledge=False):
                return

    def _take(self, *, acknowledge: bool) -> bool:
        """Some of what comes; False if the server has hung up."""
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        for event in self.h2.receive_data(data) if data else ():
            self.events.append(event)
            if acknowledge and isinstance(event, DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self.flush()
        return bool(data)

    def of(self, kind: type[E], stream: int | None = None) -> list[E]:
        """What came of this kind."""
        own = [event for event in self.events if isinstance(event, kind)]
        return [one for one in own if stream in (None, getattr(one, "stream_id", None))]

    def ended(self, stream: int) -> bool:
        return bool(
            self.of(StreamEnded, stream)
            or self.of(StreamReset, stream)
            or self.of(ConnectionTerminated)
        )

    def status(self, stream: int) -> int | None:
        """The code that the call ended with; None where the stream was reset or all hung up."""
        self.read(lambda: self.ended(stream))
        code = self.trailers(stream).get(b"grpc-status")
        return None if code is None else int(code)

    def trailers(self, stream: int) -> dict[bytes, bytes]:
        """What came before and behind the messages."""
        events = (*self.of(ResponseReceived, stream), *self.of(TrailersReceived, stream))
        return {name: value for event in events for name, value in event.headers}

    def tokens(self, stream: int) -> list[int]:
        """Of Generate's messages."""
        data = b"".join(event.data for event in self.of(DataReceived, stream))
        found, start = list[int](), 0
        while start < len(data):
            (size,) = struct.unpack_from(">I", data, start + 1)
            start += 5 + size
            found += pb.GenerateResponse.FromString(data[start - size : start]).token_ids
        return found


def call_headers(path: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "worker"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]


def framed(message: bytes, *, compressed: bool = False, size: int | None = None) -> bytes:
    """A message as gRPC frames it; `size`: what the frame says, if not the truth."""
    return struct.pack(">BI", compressed, len(message) if size is None else size) + message
