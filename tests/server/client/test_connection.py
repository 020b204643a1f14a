"""Addresses, certificates and tokens: what is refused by name before anything connects."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import trustme

from server.client.connection import Target, exit_code, first_said, said

AUTHORITY = trustme.CA()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """PEM files and a token."""
    mine = AUTHORITY.issue_cert("client")
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    mine.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    (tmp_path / "token").write_text("secret\n")
    return tmp_path


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"go together.*--cert needs --ca.*--token-file needs"):
        Target(address="10.0.0.3:1", cert=Path("c"), token=Path("t"))


@pytest.mark.parametrize("address", ["127.0.0.1:5", "localhost:5", "unix:/run/socket"])
def test_a_token_may_stay_on_this_machine_in_clear(folder: Path, address: str) -> None:
    connection = Target(address=address, token=folder / "token").open()
    assert connection.metadata == (("authorization", "Bearer secret"),)
    assert connection.credentials is None


def test_with_a_ca_everything_goes_encrypted(folder: Path) -> None:
    connection = Target(
        address="10.0.0.3:1",
        ca=folder / "ca.pem",
        cert=folder / "cert.pem",
        key=folder / "key.pem",
        token=folder / "token",
    ).open()
    assert connection.credentials is not None
    assert connection.metadata == (("authorization", "Bearer secret"),)


@pytest.mark.parametrize("text", ["", "two words", "tenant secret\nother secret\n", "\u00e9"])
def test_a_file_that_holds_no_single_token(folder: Path, text: str) -> None:
    (folder / "token").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="token: must hold one token"):
        Target(address="localhost:5", token=folder / "token").open()


def test_files_that_are_no_certificates(folder: Path) -> None:
    (folder / "wrong.pem").write_text("nothing")
    with pytest.raises(ValueError, match=r"wrong\.pem: holds no certificate"):
        Target(address="localhost:5", ca=folder / "wrong.pem").open()
    ca, cert = folder / "ca.pem", folder / "cert.pem"
    with pytest.raises(ValueError, match=r"cert\.pem: holds no private key"):
        Target(address="localhost:5", ca=ca, cert=cert, key=cert).open()
    with pytest.raises(ValueError, match=r"--ca: .*gone"):
        Target(address="localhost:5", ca=folder / "gone").open()


@pytest.mark.parametrize(
    ("details", "line"), [("no\nsuch  host", "no such host"), ("\x1b[2Jgone", "\ufffd[2Jgone")]
)
def test_a_status_is_one_line_of_text(details: str, line: str) -> None:
    assert said(failed(grpc.StatusCode.UNAVAILABLE, details)) == f"UNAVAILABLE: {line}"


def failed(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


def test_a_status_says_what_the_user_can_do() -> None:
    late = failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Stream removed (Deadline Exceeded)")
    assert said(late, timeout=0.2) == "DEADLINE_EXCEEDED: the 0.2 s of --timeout are over"
    unknown = failed(grpc.StatusCode.UNAUTHENTICATED, "no token")
    assert said(unknown) == "UNAUTHENTICATED: no token; a token is shown with --token-file"
    assert exit_code(failed(grpc.StatusCode.INVALID_ARGUMENT, "")) == 2
    assert exit_code(unknown) == 1


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """Of a server: with TLS, with TLS for known clients, in clear."""
    server = grpc.server(ThreadPoolExecutor(1))
    mine = AUTHORITY.issue_cert("localhost")
    pair = (mine.private_key_pem.bytes(), mine.cert_chain_pems[0].bytes())
    encrypted = grpc.ssl_server_credentials([pair])
    known = grpc.ssl_server_credentials([pair], AUTHORITY.cert_pem.bytes(), True)
    found = {
        "tls": server.add_secure_port("localhost:0", encrypted),
        "known": server.add_secure_port("localhost:0", known),
        "clear": server.add_insecure_port("localhost:0"),
    }
    server.start()
    yield found
    server.stop(None)


@pytest.mark.parametrize(
    ("port", "host", "ca", "advice"),
    [
        ("tls", "localhost", None, "a worker with TLS needs --ca"),
        ("known", "localhost", AUTHORITY, "--cert with --key"),
        ("tls", "localhost", trustme.CA(), "certificate is not trusted"),
        ("tls", "127.0.0.1", AUTHORITY, "certificate is for another name"),
        ("clear", "localhost", AUTHORITY, "has no TLS: leave out --ca"),
    ],
)
def test_who_answers_and_does_not_understand_is_somebody(
    tmp_path: Path, ports: dict[str, int], port: str, host: str, ca: trustme.CA | None, advice: str
) -> None:
    path = tmp_path / "ca.pem"
    if ca is not None:
        ca.cert_pem.write_to_path(str(path))
    address = f"{host}:{ports[port]}"
    with (
        Target(address=address, ca=ca and path).open().channel() as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary("/any/thing")(b"", timeout=60)
    line = first_said(caught.value, address)
    assert advice in line
    assert "No worker answers" not in line
