"""Bytes that are no message, and faults of our own: a clean status, and a worker that goes on."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from fourstep.v1 import inference_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc

from server.rpc import guard
from server.rpc.calls import refuse
from server.rpc.handlers import behaviour_of, refusing
from server.rpc.served import Asked
from tests.server.rpc.working import Running, text_request

PROMPT = "what nobody else may read"


def ended(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """What a call without an answer ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("Inference/Generate", b"\xff\xff\xff"),
        ("Inference/Generate", b"\x12\x06\x0a\x04\xff\xfe\xff\xfe"),  # a text that is no UTF-8
        ("Inference/Tokenize", b"\x0a\x06\x0a\x04\xff\xfe\xff\xfe"),
        ("Control/GetLoad", b"\xff\xff\xff"),
    ],
)
def test_bytes_that_are_no_message_are_the_callers_mistake(
    worker: Running, method: str, data: bytes
) -> None:
    path = f"/fourstep.v1.{method}"
    if method.endswith("Generate"):
        found = ended(lambda: list(worker.channel.unary_stream(path)(data)))
    else:
        found = ended(lambda: worker.channel.unary_unary(path)(data))
    assert found == (grpc.StatusCode.INVALID_ARGUMENT, "the request is no such message")


@pytest.mark.parametrize("method", ["Inference/Generate", "Inference/Tokenize"])
def test_a_request_that_does_not_come_is_not_waited_for(
    worker: Running, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    call, never = worker.channel.stream_stream(f"/fourstep.v1.{method}"), threading.Event()
    none = (grpc.StatusCode.INVALID_ARGUMENT, "the call has no whole request")
    assert ended(lambda: list(call(iter(())))) == none
    monkeypatch.setattr(guard, "MESSAGE_S", 0.25)
    late = (grpc.StatusCode.DEADLINE_EXCEEDED, "no whole request came within 0.25 seconds")
    assert ended(lambda: list(call(iter(never.wait, True), timeout=30))) == late
    never.set()
    assert list(worker.inference.Generate(text_request()))[-1].HasField("end")


@pytest.mark.parametrize("method", ["Generate", "Tokenize"])
def test_a_fault_of_ours_is_named_and_quotes_nothing(
    worker: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    def broken(text: str) -> Asked:
        raise KeyError(text)

    caplog.set_level(logging.DEBUG)
    request = text_request(PROMPT)
    with monkeypatch.context() as patch:
        patch.setattr(worker.served, "text", broken)
        if method == "Generate":
            found = ended(lambda: list(worker.inference.Generate(request)))
        else:
            asked = pb.TokenizeRequest(prompt=request.prompt)
            found = ended(lambda: worker.inference.Tokenize(asked))
    assert found == (grpc.StatusCode.INTERNAL, "a fault of this worker: KeyError")
    assert "KeyError" in caplog.text
    assert "in broken" in caplog.text
    assert PROMPT not in caplog.text
    assert not worker.served._open
    assert list(worker.inference.Generate(request))[-1].HasField("end")


def test_a_stream_ends_with_what_it_was_made_of() -> None:
    """Not some time later: what it holds is given back where it is closed."""
    ended = list[bool]()

    async def behaviour(request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            yield request
        finally:
            ended.append(True)

    async def received() -> AsyncIterator[bytes]:
        yield b"x"

    async def found(_: object) -> Any:
        return grpc.unary_stream_rpc_method_handler(behaviour, request_deserializer=bytes)

    async def main() -> None:
        details: Any = None
        handler = await guard.Guard().intercept_service(found, details)
        messages = behaviour_of(handler)(received(), None)
        assert await anext(messages) == b"x"
        await messages.aclose()
        assert ended

    asyncio.run(main())


def test_what_is_refused_alike_is_one_handler() -> None:
    """Made once: what others put around it is kept by it."""
    full = grpc.StatusCode.UNAUTHENTICATED, "a token is needed"
    assert refusing(*full) is refusing(*full)
    assert refusing(*full) is not refusing(full[0], "another text")


def test_a_refusal_that_reaches_nobody_is_no_error_of_ours() -> None:
    class Left:
        async def abort(self, *_: object) -> None:
            raise grpc.aio.InternalError

    code = grpc.StatusCode.INVALID_ARGUMENT
    for refused in (behaviour_of(refusing(code, "no"))(None, Left()), refuse(Left(), code, "no")):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(refused)


def test_other_kinds_of_methods_go_through(worker: Running) -> None:
    """Health's Watch writes instead of yielding."""
    stub: Any = health_pb2_grpc.HealthStub(worker.channel)
    call = stub.Watch(health_pb2.HealthCheckRequest(service=""))
    assert next(call).status == health_pb2.HealthCheckResponse.SERVING
    call.cancel()
    watch = worker.channel.unary_stream("/grpc.health.v1.Health/Watch")
    assert ended(lambda: list(watch(b"\xff\xff\xff")))[0] == grpc.StatusCode.INVALID_ARGUMENT
