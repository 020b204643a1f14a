"""Random messages and spoiled bytes to every method: always a clean status, and nothing is lost.

The same examples every time. Keeps true: after them the worker answers as it did before, with no
request left open and every block back.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from fourstep.v1 import inference_pb2
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.abuse.messages import messages, spoiled
from tests.server.rpc.test_inference import idle, joined
from tests.server.rpc.working import Running, running, text_request, until
from tests.server.tiny_checkpoint import write_checkpoint

PATIENCE_S = 0.2  # of a request whose answer may be long
CLEAN = {"OK", "INVALID_ARGUMENT", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"}
few = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(write_checkpoint(tmp_path_factory.mktemp("messages") / "tiny")) as made:
        before = joined(list(made.inference.Generate(text_request())))
        yield made
        until(lambda: not made.served._open)
        idle(made)
        assert joined(list(made.inference.Generate(text_request()))) == before


def status(call: Callable[[], object]) -> str:
    try:
        call()
    except grpc.RpcError as error:
        told: Any = error
        return told.code().name if len(told.details() or "") < 1000 else "too long"
    return "OK"


def generate(worker: Running, data: bytes) -> str:
    method: Any = worker.channel.unary_stream("/fourstep.v1.Inference/Generate")
    return status(lambda: list(method(data, timeout=PATIENCE_S)))


def unary(worker: Running, method: str, data: bytes) -> str:
    made: Any = worker.channel.unary_unary(f"/fourstep.v1.{method}")
    return status(lambda: made(data, timeout=60))


@few
@given(message=messages(inference_pb2.GenerateRequest))
def test_random_requests(worker: Running, message: Message) -> None:
    assert generate(worker, message.SerializeToString()) in CLEAN


@few
@given(
    prompt=messages(inference_pb2.Prompt),
    sampling=messages(inference_pb2.SamplingParams),
    seconds=st.floats(0.02, PATIENCE_S),
)
def test_random_parameters_of_a_prompt(
    worker: Running, prompt: Any, sampling: Any, seconds: float
) -> None:
    """More of these are run: there is always something to continue."""
    if not prompt.WhichOneof("input"):
        prompt.text = "def read"
    request = inference_pb2.GenerateRequest(prompt=prompt, sampling=sampling)
    assert status(lambda: list(worker.inference.Generate(request, timeout=seconds))) in CLEAN


@few
@given(data=spoiled(st.just(text_request(logit_bias={1: 2.0}, stop=["x"], seed=5))))
def test_spoiled_requests(worker: Running, data: bytes) -> None:
    assert generate(worker, data) in CLEAN


@few
@given(data=st.binary(max_size=40))
def test_random_bytes(worker: Running, data: bytes) -> None:
    for method in ("Inference/Tokenize", "Inference/Cancel", "Control/GetLoad"):
        assert unary(worker, method, data) in ("OK", "INVALID_ARGUMENT")


@few
@given(message=messages(inference_pb2.TokenizeRequest), data=st.data())
def test_random_prompts_to_count(worker: Running, message: Message, data: st.DataObject) -> None:
    for each in (message.SerializeToString(), data.draw(spoiled(st.just(message)))):
        assert unary(worker, "Inference/Tokenize", each) in CLEAN
