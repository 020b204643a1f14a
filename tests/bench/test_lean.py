"""The benchmark's client against another implementation of HTTP/2, whose bytes come in pieces.

Knows what a server may do that the one being measured seldom does on this machine: frames cut
anywhere, messages cut or joined, headers that later ones refer to, pings.
"""

import socket
import struct
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import PingAckReceived, RequestReceived, SettingsAcknowledged
from hpack import Decoder

from tests.bench.lean import Came, Lean

FIRST = [(":status", "200"), ("content-type", "application/grpc"), ("x-told-again", "later")]


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def answers(server: H2Connection, one: int, two: int, three: int) -> bytes:
    """Three messages and then OK; one message and then another status; that status alone."""
    body = framed(b"first") + framed(b"") + framed(b"second" * 9)
    for call in (one, two, three):
        server.send_headers(call, FIRST)
    server.send_data(one, body[:7])
    server.send_data(two, framed(b"other"))
    server.ping(b"12345678")
    server.send_data(one, body[7:])
    for call, status in ((one, "0"), (two, "8"), (three, "8")):
        server.send_headers(call, [("grpc-status", status), FIRST[-1]], end_stream=True)
    return server.data_to_send()


@pytest.mark.parametrize("size", [1, 5, 2**16])
def test_pieces_are_put_together_and_pings_answered(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    decoded, decode = list[object](), Decoder.decode

    def noted(*args: Any, **options: Any) -> Any:
        decoded.append(args)
        return decode(*args, **options)

    monkeypatch.setattr(Decoder, "decode", noted)
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        Lean(f"127.0.0.1:{listening.getsockname()[1]}") as lean,
        listening.accept()[0] as peer,
    ):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one, two, three = calls = [lean.start("/a.B/C", message) for message in (b"x", b"", b"z")]
        asked = list[int | None]()
        while asked != calls:
            events = server.receive_data(peer.recv(2**16))
            asked += [event.stream_id for event in events if isinstance(event, RequestReceived)]
        decoded.clear()  # the server's
        data, came = answers(server, one, two, three), list[Came]()
        for begin in range(0, len(data), size):
            peer.sendall(data[begin : begin + size])
            came += lean.receive(10.0)
        while sum(each.status is not None for each in came) < 3:
            came += lean.receive(10.0)
        assert len(decoded) == 2 * len(calls), "each block once: it changes what later ones mean"
        told = list[type]()
        while not {PingAckReceived, SettingsAcknowledged} <= set(told):
            peer.settimeout(30)
            told += [type(event) for event in server.receive_data(peer.recv(2**16))]
    by_call = {call: [(c.message, c.status) for c in came if c.call == call] for call in calls}
    assert by_call == {
        one: [(b"first", None), (b"", None), (b"second" * 9, None), (None, 0)],
        two: [(b"other", None), (None, 8)],
        three: [(None, 8)],
    }
