"""Addresses, certificates and tokens: what is refused by name before anything connects."""

from pathlib import Path

import grpc
import pytest
import trustme

from server.client.connection import Target, said

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
    with pytest.raises(OSError, match="gone"):
        Target(address="localhost:5", ca=folder / "gone").open()


@pytest.mark.parametrize(
    ("details", "line"), [("no\nsuch  host", "no such host"), ("\x1b[2Jgone", "\ufffd[2Jgone")]
)
def test_a_status_is_one_line_of_text(details: str, line: str) -> None:
    metadata = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, details=details)
    assert said(error) == f"UNAVAILABLE: {line}"
