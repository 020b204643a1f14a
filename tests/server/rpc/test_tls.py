"""TLS and mTLS by real clients: who gets in, new files without a restart, bad ones refused."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from fourstep.v1 import control_pb2, control_pb2_grpc

from server.config import ListenerConfig, TlsConfig
from server.rpc.tls import TlsError, credentials
from tests.server.rpc.working import Running, running
from tests.server.tiny_checkpoint import write_checkpoint

CA, OTHER_CA, CLIENT_CA = trustme.CA(), trustme.CA(), trustme.CA()


def write(folder: Path, authority: trustme.CA, *, key_of: trustme.CA | None = None) -> TlsConfig:
    """A pair for localhost, put in place whole; `key_of`: with the key of another pair."""
    pair = authority.issue_cert("localhost")
    found = TlsConfig(cert=folder / "cert.pem", key=folder / "key.pem")
    key = (pair if key_of is None else key_of.issue_cert("localhost")).private_key_pem
    for path, content in ((found.cert, pair.cert_chain_pems[0]), (found.key, key)):
        new = path.with_suffix(".new")
        new.write_bytes(content.bytes())
        new.rename(path)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Running]:
    """Two listeners; the second one wants certificates of its clients."""
    pair = write(folder, CA)
    CLIENT_CA.cert_pem.write_to_path(folder / "client-ca.pem")
    mutual = TlsConfig(cert=pair.cert, key=pair.key, client_ca=folder / "client-ca.pem")
    listeners = tuple(ListenerConfig(address="127.0.0.1:0", tls=tls) for tls in (pair, mutual))
    with running(write_checkpoint(folder / "tiny"), listeners=listeners) as made:
        yield made


def ask(worker: Running, authority: trustme.CA, *, listener: int = 0, own: Any = None) -> str:
    """The model's name, over a new connection; `own`: the client's certificate."""
    key = None if own is None else own.private_key_pem.bytes()
    chain = None if own is None else own.cert_chain_pems[0].bytes()
    secure = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), key, chain)
    address = f"localhost:{worker.worker.listeners[listener].port}"
    with grpc.secure_channel(address, secure, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        return stub.GetModel(control_pb2.GetModelRequest(), timeout=20).name


def refused(worker: Running, authority: trustme.CA, **options: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask(worker, authority, **options)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_client_that_trusts_us_gets_in(worker: Running) -> None:
    assert ask(worker, CA) == "tiny"
    refused(worker, OTHER_CA)


def test_plaintext_is_no_way_in(worker: Running) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        worker.control.GetModel(control_pb2.GetModelRequest(), timeout=20)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_client_has_to_be_known_where_that_is_asked(worker: Running) -> None:
    refused(worker, CA, listener=1)
    refused(worker, CA, listener=1, own=OTHER_CA.issue_cert("client"))
    assert ask(worker, CA, listener=1, own=CLIENT_CA.issue_cert("client")) == "tiny"


def test_new_files_count_for_the_next_connection(
    worker: Running, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(worker, CA) == "tiny"
    write(folder, OTHER_CA)
    assert ask(worker, OTHER_CA) == "tiny"
    refused(worker, CA)
    with caplog.at_level(logging.WARNING):
        write(folder, CA, key_of=CA)
        assert ask(worker, OTHER_CA) == "tiny"
        assert ask(worker, OTHER_CA) == "tiny"
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder / 'key.pem'} is not the key of {folder / 'cert.pem'}; "
        "what was read before stays in use"
    ]
    write(folder, CA)
    assert ask(worker, CA) == "tiny"


def encrypted(path: Path) -> None:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )


def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"key.pem is not the key of .*cert.pem"):
        credentials(write(tmp_path, CA, key_of=CA))
    pair = write(tmp_path, CA)
    encrypted(pair.key)
    with pytest.raises(TlsError, match=r"key.pem: the key is encrypted"):
        credentials(pair)
    pair.key.write_text("no key")
    with pytest.raises(TlsError, match=r"key.pem are not a certificate and its key, PEM"):
        credentials(pair)
    pair = write(tmp_path, CA)
    authority = tmp_path / "ca.pem"
    authority.write_text("nobody")
    with pytest.raises(TlsError, match=r"ca.pem has no certificate"):
        credentials(TlsConfig(cert=pair.cert, key=pair.key, client_ca=authority))
    pair.cert.unlink()
    with pytest.raises(OSError, match=r"cert.pem"):
        credentials(pair)
