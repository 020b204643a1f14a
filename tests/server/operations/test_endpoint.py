"""The operators' port by plain sockets: its pages, and clients that dawdle or never leave."""

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from server.operations import endpoint
from server.operations.endpoint import CONNECTIONS, OperationsServer


class Worker:
    """What the port tells of."""

    def __init__(self) -> None:
        self.ready = False
        self.collected = 0

    def metrics(self) -> bytes:
        self.collected += 1
        return b"# nothing\n" * 10


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def server(worker: Worker) -> Iterator[OperationsServer]:
    with OperationsServer(
        "127.0.0.1:0", metrics=worker.metrics, ready=lambda: worker.ready
    ) as made:
        yield made


def fetch(
    server: OperationsServer, path: str, method: str = "GET"
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def connect(server: OperationsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def raw(server: OperationsServer, said: bytes) -> bytes:
    """Everything that comes back."""
    with connect(server) as client:
        client.sendall(said)
        return read_all(client)


def read_all(client: socket.socket) -> bytes:
    found = []
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65536):
            found.append(piece)
    return b"".join(found)


def test_alive_is_not_ready(server: OperationsServer, worker: Worker) -> None:
    assert fetch(server, "/healthz")[:2] == (200, b"alive\n")
    assert fetch(server, "/readyz")[:2] == (503, b"not ready\n")
    worker.ready = True
    assert fetch(server, "/readyz?verbose")[:2] == (200, b"ready\n")


def test_metrics_are_text_of_prometheus(server: OperationsServer) -> None:
    status, body, headers = fetch(server, "/metrics")
    assert (status, body) == (200, b"# nothing\n" * 10)
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    status, body, headers = fetch(server, "/metrics", "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "100")


def test_metrics_are_collected_no_oftener_than_needed(
    server: OperationsServer, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "FRESH", 3600)
    for _ in range(5):
        fetch(server, "/metrics")
    assert worker.collected <= 1
    monkeypatch.setattr(endpoint, "FRESH", 0)
    fetch(server, "/metrics")
    fetch(server, "/metrics")
    assert worker.collected >= 2


def test_what_is_not_there_is_refused(server: OperationsServer) -> None:
    assert fetch(server, "/")[0] == 404
    status, _, headers = fetch(server, "/metrics", "POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert raw(server, b"what is this\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(server, b"\x16\x03\x01\x00\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(server, b"GET /" + b"x" * 100_000) == b""


def test_who_dawdles_is_let_go(server: OperationsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SECONDS", 0.2)
    with connect(server) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert read_all(client) == b"", "it was closed without an answer"
    assert fetch(server, "/healthz")[0] == 200


def test_many_that_stay_do_not_keep_others_out(
    server: OperationsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "SECONDS", 3600)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(4 * CONNECTIONS)]
        for client in clients[1:]:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
        for _ in range(5):
            assert fetch(server, "/healthz")[0] == 200
        assert len(server._open) <= CONNECTIONS
        assert read_all(clients[0]) == b"", "the oldest was closed"


def test_a_slow_reader_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SECONDS", 60)
    big = b"x" * 20_000_000  # more than a socket takes at once
    with (
        OperationsServer("127.0.0.1:0", metrics=lambda: big, ready=lambda: True) as server,
        connect(server) as client,
    ):
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert fetch(server, "/healthz")[0] == 200
        assert len(read_all(client)) > len(big)


def test_metrics_that_fail_close_the_connection_and_nothing_else(worker: Worker) -> None:
    def broken() -> bytes:
        raise RuntimeError("not now")

    with OperationsServer("127.0.0.1:0", metrics=broken, ready=lambda: True) as server:
        assert raw(server, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
        assert fetch(server, "/healthz")[0] == 200


def test_it_is_over_when_it_is_closed(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SECONDS", 3600)
    before = threading.active_count()
    with OperationsServer("127.0.0.1:0", metrics=worker.metrics, ready=lambda: True) as server:
        idle = connect(server)
        until = time.monotonic() + 60
        while not server._open:
            assert time.monotonic() < until
            time.sleep(0.01)
    with idle:
        assert read_all(idle) == b""
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        connect(server)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_an_address_that_is_taken_is_named(host: str, worker: Worker) -> None:
    with OperationsServer(f"{host}:0", metrics=worker.metrics, ready=lambda: True) as server:
        taken = f"{host}:{server.port}"
        with pytest.raises(OSError, match=rf"{taken[:4]}.*in use".replace("[", r"\[")):
            OperationsServer(taken, metrics=worker.metrics, ready=lambda: True)
