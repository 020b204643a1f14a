"""Calls that end in every way there is: each counted once, with the status that its caller got."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from fourstep.v1 import control_pb2, control_pb2_grpc
from fourstep.v1 import inference_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from server.config import ListenerConfig
from server.operations import interceptor
from server.operations.interceptor import UNKNOWN, Calls
from server.operations.operations import Operations
from server.rpc.guard import Guard
from tests.server.operations.watched import (
    GENERATE,
    LISTENER,
    TOKENIZE,
    Lines,
    Servicer,
    Watched,
    watched,
)
from tests.server.rpc.working import reason_of, running_as, tiny_config, until
from tests.server.tiny_checkpoint import write_checkpoint

CHECK, WATCH = "grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def server() -> Iterator[Watched]:
    with watched() as made:
        yield made


def request(wish: str) -> pb.GenerateRequest:
    return pb.GenerateRequest(request_id=wish)


@pytest.mark.parametrize(
    ("wish", "code", "level"),
    [
        ("answer", grpc.StatusCode.OK, "INFO"),
        ("refuse", grpc.StatusCode.RESOURCE_EXHAUSTED, "INFO"),
        ("break", grpc.StatusCode.INTERNAL, "ERROR"),
        ("raise", grpc.StatusCode.UNKNOWN, "ERROR"),
    ],
)
def test_a_stream_ends_with_its_status(
    server: Watched, lines: Lines, wish: str, code: grpc.StatusCode, level: str
) -> None:
    before = server.begun(GENERATE), server.ended(GENERATE, code.name)
    call = server.inference.Generate(request(wish))
    if code is grpc.StatusCode.OK:
        assert len(list(call)) == 2
    else:
        with pytest.raises(grpc.RpcError):
            list(call)
    assert call.code() is code
    until(lambda: len(lines.found) == 1)
    assert (server.begun(GENERATE), server.ended(GENERATE, code.name)) == (
        before[0] + 1,
        before[1] + 1,
    )
    assert server.open(GENERATE) == 0
    (line,) = lines.found
    assert (line["status"], line["request_id"], line["levelname"]) == (code.name, wish, level)
    assert (line["listener"], line["rpc"], line["tenant"]) == (LISTENER, GENERATE, "acme")


def test_a_line_tells_what_was_got(server: Watched, lines: Lines) -> None:
    start = time.monotonic()
    metadata = (("traceparent", PARENT),)
    list(server.inference.Generate(request("answer"), metadata=metadata))
    until(lambda: len(lines.found) == 1)
    (line,) = lines.found
    told = ("cached_tokens", "answer_tokens", "steps", "accepted")
    assert [line[name] for name in told] == [4, 4, 1, 2]
    assert (line["queue_seconds"], line["first_token_seconds"]) == (0.5, 0.75)
    assert 0 < line["seconds"] < time.monotonic() - start
    assert line["traceparent"] == PARENT


@pytest.mark.parametrize("parent", ["", "nonsense", PARENT + "-", PARENT.upper()])
def test_a_traceparent_that_is_none_is_not_told(server: Watched, lines: Lines, parent: str) -> None:
    metadata = (("traceparent", parent),)
    list(server.inference.Generate(request("answer"), metadata=metadata))
    until(lambda: len(lines.found) == 1)
    assert lines.found[0]["traceparent"] == ""


@pytest.mark.parametrize("wish", ["stay", "flood"])
def test_who_leaves_has_cancelled(server: Watched, lines: Lines, wish: str) -> None:
    before = server.ended(GENERATE, "CANCELLED")
    call = server.inference.Generate(request(wish))
    next(call)
    assert server.open(GENERATE) == 1
    call.cancel()
    until(lambda: server.ended(GENERATE, "CANCELLED") == before + 1)
    assert server.open(GENERATE) == 0
    until(lambda: len(lines.found) == 1)
    assert lines.found[0]["status"] == "CANCELLED"


@pytest.mark.parametrize(("sent", "code"), [(False, "CANCELLED"), (True, "INVALID_ARGUMENT")])
def test_calls_without_a_request_are_told_apart(lines: Lines, sent: bool, code: str) -> None:
    """Whether their caller has left, or said that this is all."""
    never = threading.Event()
    with watched(inner=[Guard()]) as server:
        empty = iter(()) if sent else iter(never.wait, True)
        call = server.channel.stream_stream(f"/{GENERATE}")(empty)
        until(lambda: server.begun(GENERATE) == 1)
        if not sent:
            until(lambda: server.open(GENERATE) == 1)
            call.cancel()
        until(lambda: server.ended(GENERATE, code) == 1)
        assert server.open(GENERATE) == 0
        never.set()
    until(lambda: len(lines.found) == 1)
    assert lines.found[0]["status"] == code


def test_a_deadline_is_no_cancellation(server: Watched, lines: Lines) -> None:
    call = server.inference.Generate(request("stay"), timeout=0.2)
    with pytest.raises(grpc.RpcError):
        list(call)
    assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    until(lambda: len(lines.found) == 1)
    assert lines.found[0]["status"] == "DEADLINE_EXCEEDED"
    assert server.ended(GENERATE, "DEADLINE_EXCEEDED") == 1


def test_unary_calls_are_counted_and_logged_where_they_fail(server: Watched, lines: Lines) -> None:
    prompt = pb.Prompt(text="secret")
    assert server.inference.Tokenize(pb.TokenizeRequest(prompt=prompt)).count == 3
    with pytest.raises(grpc.RpcError):
        server.inference.Tokenize(pb.TokenizeRequest())
    until(lambda: len(lines.found) == 1)
    assert (lines.found[0]["rpc"], lines.found[0]["status"]) == (TOKENIZE, "INVALID_ARGUMENT")
    assert server.ended(TOKENIZE, "OK") == server.ended(TOKENIZE, "INVALID_ARGUMENT") == 1


def test_a_flood_of_calls_that_are_sent_away_is_none_of_lines(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was asked yet, so there is nothing to tell of each; how many there were is told, and
    whose they were."""

    def send_away(server: Watched) -> None:
        for _ in range(20):
            with pytest.raises(grpc.RpcError):
                server.inference.Tokenize(pb.TokenizeRequest())

    monkeypatch.setattr(interceptor, "SAY_EVERY", 3600.0)
    with watched() as server:
        send_away(server)
        until(lambda: server.ended(TOKENIZE, "INVALID_ARGUMENT") == 20)
        assert [line["calls"] for line in lines.found] == [1]
    assert [line["calls"] for line in lines.found] == [1, 19]  # the rest as the server ends
    monkeypatch.setattr(interceptor, "SAY_EVERY", 0.5)
    with watched() as server:
        send_away(server)
        until(lambda: sum(line["calls"] for line in lines.found) == 40)
    assert len(lines.found) < 21
    assert lines.found[2]["calls"] == 1
    assert {(line["rpc"], line["tenant"]) for line in lines.found} == {(TOKENIZE, "acme")}


def test_health_and_reflection_go_on_as_they_are(server: Watched, lines: Lines) -> None:
    stub: Any = health_pb2_grpc.HealthStub(server.channel)
    stub.Check(health_pb2.HealthCheckRequest())
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    next(watch)
    assert server.open(WATCH) == 1
    watch.cancel()
    until(lambda: server.open(WATCH) == 0)
    assert server.ended(CHECK, "OK") == 1
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    mirror: Any = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    assert len(list(mirror.ServerReflectionInfo(iter([asked])))) == 1
    assert all(line["status"] == "CANCELLED" for line in lines.found)


def test_a_caller_makes_no_labels(server: Watched, lines: Lines) -> None:
    for name in ("/made.up/One", "/made.up/Two", "/fourstep.v1.Inference/Three"):
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED") as caught:
            server.channel.unary_unary(name)(b"")
        assert reason_of(caught.value) == "UNSUPPORTED"  # so it is not grpc that answers
    until(lambda: server.ended(UNKNOWN, "UNIMPLEMENTED") == 3)
    assert server.begun(UNKNOWN) == 3
    labels = {
        sample.labels["rpc"]
        for family in server.registry.collect()
        for sample in family.samples
        if "rpc" in sample.labels
    }
    assert not [label for label in labels if "made" in label or "Three" in label]
    assert {(line["rpc"], line["status"]) for line in lines.found} == {(UNKNOWN, "UNIMPLEMENTED")}


def test_two_listeners_that_find_a_port_are_told_apart(
    tmp_path: Path,
) -> None:
    anywhere = ListenerConfig(address="127.0.0.1:0")
    config = tiny_config(write_checkpoint(tmp_path / "tiny"), listeners=(anywhere, anywhere))
    with (
        Operations(config.operations) as operations,
        running_as(config, operations=operations) as made,
        grpc.insecure_channel(made.worker.listeners[1].address) as channel,
    ):
        control_pb2_grpc.ControlStub(channel).GetLoad(control_pb2.GetLoadRequest())
        for one, calls in zip(made.worker.listeners, (None, 1.0), strict=True):
            labels = {"listener": one.address, "rpc": "fourstep.v1.Control/GetLoad"}
            value = operations.metrics.registry.get_sample_value
            assert value("fourstep_calls_begun_total", labels) == calls


def test_a_server_that_is_gone_is_not_kept() -> None:
    """Nor the model behind it: what is made of its handlers is its own."""
    gone = asked_once()
    gc.collect()
    assert gone() is None


def asked_once() -> weakref.ref[Servicer]:
    servicer = Servicer()
    handler = grpc.unary_stream_rpc_method_handler(servicer.Generate)
    details: Any = SimpleNamespace(method=f"/{GENERATE}")

    async def found(_: object) -> Any:
        return handler

    for one in (*Calls(CollectorRegistry()).interceptors(lambda: LISTENER), Guard()):
        made = asyncio.run(one.intercept_service(found, details))
        again = asyncio.run(one.intercept_service(found, details))
        assert made is again
    return weakref.ref(servicer)
