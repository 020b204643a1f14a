"""Tokens by a real client: who gets in, what stays apart, what is for operators."""

import dataclasses
import hmac
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fourstep.v1 import control_pb2
from fourstep.v1 import inference_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc

from server.config import LimitsConfig, ListenerConfig
from server.rpc.auth import Auth, TokensError, read_tokens
from tests.server.rpc.working import Running, reason_of, running, text_request, until
from tests.server.tiny_checkpoint import write_checkpoint

ALICE, BOB, OPS = "alice-alice-alice", "bob-bob-bob-bob-bob", "ops-ops-ops-ops-ops"
TOKENS = f"# who may call\n\nalice {ALICE}\nbob   {BOB}\nops {OPS}\nops {OPS}-old\n"


def write(path: Path, text: str = TOKENS) -> Path:
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_text(text, encoding="utf-8")
    return new.rename(path)


def token(value: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {value}")]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("auth") / "tokens")


@pytest.fixture(scope="module")
def worker(tokens: Path) -> Iterator[Running]:
    """Its second listener asks for nothing, its third is a gateway's."""
    local = ListenerConfig(address="127.0.0.1:0")
    asking = ListenerConfig(address="127.0.0.1:0", tokens=tokens, operators=("ops",))
    gateway = dataclasses.replace(asking, protocol="vllm")
    with running(
        write_checkpoint(tokens.parent / "tiny"),
        listeners=(asking, local, gateway),
        limits=LimitsConfig(queued=8, tenant_requests=2),
    ) as made:
        yield made


@pytest.mark.parametrize(
    ("value", "name"), [(ALICE, "alice"), (OPS, "ops"), ("nobody-nobody-nobody", None)]
)
def test_who_it_is_takes_the_same_time(
    tokens: Path, monkeypatch: pytest.MonkeyPatch, value: str, name: str | None
) -> None:
    """Each token there is is compared, in constant time, wherever the right one stands."""
    compared = list[bytes]()

    def compare(given: bytes, known: bytes) -> bool:
        compared.append(known)
        return given == known

    auth = Auth(tokens, ())
    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert auth._name(token(value)) == name
    assert len(set(compared)) == len(compared) == 4


def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        token("nobody-nobody-nobody"),
        token(ALICE[:-1]),
        token(ALICE + "x"),
        token(""),
        [("authorization", ALICE)],
        [("authorization", f"Basic {ALICE}")],
        [*token(ALICE), *token(BOB)],
        [("authorization-bin", f"Bearer {ALICE}".encode())],
    ],
)
def test_without_a_good_token_nothing_is_read(worker: Running, metadata: Any) -> None:
    large = text_request("x" * (17 * 2**20))  # more than a message may have
    code, details = failure(worker.inference.Generate(large, metadata=metadata))
    assert (code, details) == (grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is needed")
    with pytest.raises(grpc.RpcError) as caught:
        worker.control.GetModel(control_pb2.GetModelRequest(), metadata=metadata)
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert reason_of(caught.value) == "UNAUTHENTICATED"


@pytest.mark.parametrize("value", [f"Bearer {ALICE}", f"bearer  {ALICE}", f"Bearer {OPS}-old"])
def test_with_one_everything_is_as_ever(worker: Running, value: str) -> None:
    metadata = [("authorization", value)]
    messages = list(worker.inference.Generate(text_request(), metadata=metadata))
    assert messages[-1].end.usage.completion_tokens == 12
    assert worker.control.GetModel(control_pb2.GetModelRequest(), metadata=metadata).name == "tiny"


def test_health_is_told_to_everybody(worker: Running) -> None:
    stub: Any = health_pb2_grpc.HealthStub(worker.channel)
    found = stub.Check(health_pb2.HealthCheckRequest(service="fourstep.v1.Inference"))
    assert found.status == health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(worker.worker.listeners[0].address) as channel:
        unknown = channel.unary_unary("/grpc.health.v1.Healthy/Check")
        with pytest.raises(grpc.RpcError) as caught:
            unknown(b"")
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_gateways_protocol_is_guarded_too(worker: Running) -> None:
    def code(method: str, *metadata: tuple[str, str]) -> grpc.StatusCode | None:
        with grpc.insecure_channel(worker.worker.listeners[2].address) as channel:
            call = channel.unary_unary(f"/vllm.grpc.engine.VllmEngine/{method}")
            try:
                call(b"", metadata=metadata)
            except grpc.RpcError as error:
                return error.code()
        return None

    assert code("HealthCheck") is None
    assert code("GetModelInfo") == grpc.StatusCode.UNAUTHENTICATED
    assert code("GetModelInfo", *token(ALICE)) is None
    assert code("FlushCache", *token(ALICE)) == grpc.StatusCode.PERMISSION_DENIED
    assert code("FlushCache", *token(OPS)) is None


def test_names_have_a_share_and_ids_of_their_own(worker: Running) -> None:
    request = text_request(max_tokens=200)
    request.request_id = "mine"
    of_alice = worker.inference.Generate(request, metadata=token(ALICE))
    of_bob = worker.inference.Generate(request, metadata=token(BOB))
    for call in (of_alice, of_bob):
        next(call)
    more = worker.inference.Generate(text_request(max_tokens=200), metadata=token(ALICE))
    until(lambda: len(worker.served._open) == 3)
    assert failure(worker.inference.Generate(text_request(), metadata=token(ALICE))) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "2 requests of alice are open already",
    )
    cancel = pb.CancelRequest(request_ids=["mine"])
    assert not worker.inference.Cancel(cancel, metadata=token(OPS)).cancelled_ids
    assert list(worker.inference.Cancel(cancel, metadata=token(BOB)).cancelled_ids) == ["mine"]
    assert failure(of_bob)[0] == grpc.StatusCode.CANCELLED
    rest = list(of_alice)
    assert rest[-1].HasField("end")
    assert rest[-1].request_id == "mine"
    assert list(more)[-1].HasField("end")


def test_names_share_no_cached_prefix(worker: Running) -> None:
    def cached(name: str, salt: str) -> int:
        request = text_request("def read(" * 40)
        request.cache_salt = salt
        *_, last = worker.inference.Generate(request, metadata=token(name))
        return last.end.usage.cached_tokens

    assert cached(ALICE, "s") == 0
    assert cached(BOB, "s") == 0
    assert cached(ALICE, "") == 0
    assert cached(ALICE, "s") > 0
    with grpc.insecure_channel(worker.worker.listeners[1].address) as channel:
        stub = type(worker.inference)(channel)
        for salt in ("s", "alice s", " alice s"):
            request = text_request("def read(" * 40)
            request.cache_salt = salt
            assert list(stub.Generate(request))[-1].end.usage.cached_tokens == 0


def test_only_operators_drain(worker: Running) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        worker.control.Drain(control_pb2.DrainRequest(), metadata=token(ALICE))
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert not worker.served.leaving


def test_a_changed_file_counts_at_once(
    worker: Running, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def code(value: str) -> grpc.StatusCode | None:
        try:
            worker.control.GetLoad(control_pb2.GetLoadRequest(), metadata=token(value))
        except grpc.RpcError as error:
            return error.code()
        return None

    assert code(BOB) is None
    write(tokens, f"alice {ALICE}\nops {OPS}\n")
    assert (code(BOB), code(ALICE)) == (grpc.StatusCode.UNAUTHENTICATED, None)
    with caplog.at_level(logging.WARNING):
        write(tokens, "alice short\n")
        assert (code(ALICE), code(ALICE)) == (None, None)
        tokens.unlink()
        assert code(ALICE) is None
    bad, gone = (record.getMessage() for record in caplog.records)
    assert "line 1" in bad
    assert "short" not in bad
    assert "No such file" in gone
    write(tokens)
    assert code(BOB) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no token"),
        ("# nothing\n", "has no token"),
        ("alice\n", "line 1: must be a name"),
        ("alice short\n", "line 1: must be a name"),
        (f"a:b {ALICE}\n", "line 1: must be a name"),
        (f"alice {ALICE} more\n", "line 1: must be a name"),
        (f"alice {ALICE}\nbob {ALICE}\n", "line 2: another name has that token"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path / "tokens", text)
    with pytest.raises(TokensError, match=words) as caught:
        read_tokens(path)
    assert ALICE not in str(caught.value)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens")
    Auth(path, ("ops",))
    with pytest.raises(TokensError, match=r"no token of operators .'nobody'"):
        Auth(path, ("nobody", "ops"))
    for mode in (0o604, 0o602, 0o601):
        path.chmod(mode)
        with pytest.raises(TokensError, match="chmod o="):
            Auth(path, ())
    with pytest.raises(TokensError) as caught:  # both at once
        Auth(path, ("nobody",))
    assert "chmod o=" in str(caught.value)
    assert "no token of operators ['nobody']" in str(caught.value)
    path.chmod(0o640)
    Auth(path, ())
