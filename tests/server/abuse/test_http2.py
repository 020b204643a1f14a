"""HTTP/2 that no client of good will speaks: floods, half calls, headers without an end.

Keeps true: the worker neither grows nor stops for it, and who behaves on another connection, or
afterwards on the same one, is served as ever.
"""

import socket
import struct
from collections.abc import Callable

import pytest
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    PingAckReceived,
    RemoteSettingsChanged,
)
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, HeadersFrame

from tests.server.abuse.process import WorkerProcess
from tests.server.abuse.wire import CHECK, GENERATE, TOKENIZE, Wire, call_headers, framed
from tests.server.rpc.working import text_request, until

pytestmark = pytest.mark.usefixtures("unharmed")
REQUEST = text_request().SerializeToString()
GROWTH_MIB = 12.0  # what allocators keep, and less than a leak would make of so many frames
OK, INVALID, EXHAUSTED, INTERNAL = 0, 3, 8, 13


def flood_twice(process: WorkerProcess, flood: Callable[[], None]) -> None:
    """What the first one leaves is the allocator's; the second one may not add to it."""
    flood()
    most = process.at_rest().memory_mib + GROWTH_MIB
    flood()
    until(lambda: process.at_rest().memory_mib < most)  # what is on its way is in memory too


def test_rapid_reset(process: WorkerProcess, tokens: list[int]) -> None:
    """Calls that are taken back as fast as they can be made, with a message and without."""

    def flood() -> None:
        with Wire(process.addresses[0]) as wire:
            for number in range(1500):
                stream = wire.headers()
                if number % 2:
                    wire.data(stream, framed(REQUEST), end=True)
                wire.h2.reset_stream(stream)
            last = wire.call(REQUEST)
            if wire.status(last) is not None:  # it may hang up on such a client too
                assert wire.tokens(last) == tokens

    flood_twice(process, flood)


@pytest.mark.parametrize("kind", ["ping", "settings", "window", "empty data"])
def test_floods_of_frames(process: WorkerProcess, tokens: list[int], kind: str) -> None:
    """None of what the server answers to them is read."""

    def flood() -> None:
        with Wire(process.addresses[0]) as wire:
            stream = wire.headers()
            send: dict[str, Callable[[], None]] = {
                "ping": lambda: wire.h2.ping(b"no hurry"),
                "settings": lambda: wire.h2.update_settings({4: 65535}),
                "window": lambda: wire.h2.increment_flow_control_window(1, stream),
                "empty data": lambda: wire.h2.send_data(stream, b""),
            }
            for number in range(8000):
                send[kind]()
                if number % 200 == 199:
                    wire.flush()
            wire.data(stream, framed(REQUEST), end=True)
            if wire.status(stream) is not None:
                assert wire.tokens(stream) == tokens

    flood_twice(process, flood)


def test_a_silent_call_may_be_pinged_for_ever(process: WorkerProcess, tokens: list[int]) -> None:
    """No `too_many_pings`: a prompt that takes long is silent for long."""
    with Wire(process.addresses[0]) as wire:
        stream = wire.headers()
        for number in range(1, 101):
            wire.h2.ping(struct.pack(">Q", number))
            wire.flush()
            wire.read(lambda count=number: len(wire.of(PingAckReceived)) == count)
        assert not wire.of(ConnectionTerminated)
        wire.data(stream, framed(REQUEST), end=True)
        assert wire.status(stream) == OK
        assert wire.tokens(stream) == tokens


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", INVALID),
        (framed(REQUEST)[:3], INVALID),
        (framed(REQUEST)[:-1], INVALID),
        (framed(REQUEST, size=2**32 - 1), EXHAUSTED),
        (framed(REQUEST, size=1), INVALID),
        (framed(REQUEST, compressed=True), INTERNAL),
        (b"\xff" * 64, INVALID),
    ],
    ids=["nothing", "half a prefix", "half", "huge", "more behind it", "not compressed", "noise"],
)
def test_calls_that_end_too_early(
    process: WorkerProcess, tokens: list[int], data: bytes, code: int
) -> None:
    """Grpc would leave those without a whole message open until the caller goes."""
    with Wire(process.addresses[0]) as wire:
        broken = [wire.headers(path) for path in (GENERATE, TOKENIZE, CHECK)]
        for stream in broken:
            wire.data(stream, data, end=True)
        good = wire.call(REQUEST)
        assert wire.status(good) == OK
        assert wire.tokens(good) == tokens
        *of_ours, of_health = map(wire.status, broken)
        assert of_ours == [code, code]
        assert of_health in (code, OK)  # grpc takes noise for an empty message at times


def test_calls_that_never_send_their_message(process: WorkerProcess) -> None:
    """They hold nothing but themselves, until the connection is gone."""
    wire = Wire(process.addresses[0])
    for _ in range(200):
        wire.headers()
    assert process.idle()
    wire.socket.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("grpc-encoding", "rot13"), ("content-type", "text/html"), ("grpc-timeout", "soon")],
)
def test_headers_that_make_no_sense(process: WorkerProcess, name: str, value: str) -> None:
    with Wire(process.addresses[0]) as wire:
        headers = dict(call_headers(GENERATE)) | {name: value}
        stream = wire.h2.get_next_available_stream_id()
        wire.h2.send_headers(stream, list(headers.items()))
        wire.flush()
        wire.data(stream, framed(REQUEST), end=True)
        wire.read(lambda: wire.ended(stream))
        assert not [event for event in wire.of(DataReceived, stream) if len(event.data) > 4096]


@pytest.mark.parametrize("acknowledged", [True, False])
@pytest.mark.parametrize(
    "more",
    [
        [("x", "v" * 17000)],
        [(f"x-{i}", "v" * 1000) for i in range(17)],
        [(f"x-{i}", "v" * 1000) for i in range(1000)],
    ],
    ids=["one", "many", "many frames"],
)
def test_metadata_that_is_too_large(
    process: WorkerProcess, more: list[tuple[str, str]], acknowledged: bool
) -> None:
    """Grpc has a limit only for those who have acknowledged it. No message is waited for."""
    with Wire(process.addresses[0]) as wire:
        if acknowledged:
            wire.read(lambda: bool(wire.of(RemoteSettingsChanged)))
        stream = wire.headers(more=more)
        assert wire.status(stream) == EXHAUSTED
        ours = b"more than 16384 bytes of metadata"
        assert not (acknowledged and wire.trailers(stream).get(b"grpc-message") == ours)


def test_headers_without_an_end(process: WorkerProcess) -> None:
    """Of 32 MiB the server keeps none, once they are more than grpc takes."""
    most = process.at_rest().memory_mib + GROWTH_MIB
    with Wire(process.addresses[0]) as wire:
        begun = HeadersFrame(1, Encoder().encode(call_headers(GENERATE)))
        wire.raw(begun.serialize())
        for number in range(2048):
            more = Encoder().encode([(f"x-{number}", "v" * 16000)], huffman=False)
            wire.raw(ContinuationFrame(1, more).serialize())
        until(lambda: process.measure().memory_mib < most)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n", b"\x00" * 4096, b""])
def test_what_is_no_http2(process: WorkerProcess, data: bytes) -> None:
    host, _, port = process.addresses[0].rpartition(":")
    for _ in range(50):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
