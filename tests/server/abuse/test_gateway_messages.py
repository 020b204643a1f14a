"""Random messages and spoiled bytes to vllm.grpc.engine, as test_messages.py has for fourstep.v1.

Keeps true: a gateway that speaks another version of the protocol, or nonsense, gets a clean status;
after it the worker answers as before, with no request left open and every block back.
"""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from tests.server.abuse.messages import messages, spoiled
from tests.server.abuse.test_messages import CLEAN, PATIENCE_S, few, status
from tests.server.rpc.test_inference import idle
from tests.server.rpc.working import until
from tests.server.tiny_checkpoint import write_checkpoint
from tests.server.vllm.calling import calling, completes, tokens_request

UNARY = ("Abort", "Embed", "FlushCache", "GetLoads", "GetModelInfo", "GetServerInfo", "HealthCheck")
GOOD = tokens_request([1, 2, 3], logit_bias={1: 2.0}, stop=["x"], seed=5, top_p=0.9)


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    with calling(write_checkpoint(tmp_path_factory.mktemp("gateway") / "tiny")) as (worker, stub):
        before = completes(list(stub.Generate(GOOD)))
        with grpc.insecure_channel(worker.worker.listeners[1].address) as made:
            yield made
        until(lambda: not worker.served._open)
        idle(worker)
        after = completes(list(stub.Generate(GOOD)))
        assert {i: one.output_ids for i, one in after.items()} == {
            i: one.output_ids for i, one in before.items()
        }


def generate(channel: grpc.Channel, data: bytes) -> str:
    method: Any = channel.unary_stream("/vllm.grpc.engine.VllmEngine/Generate")
    return status(lambda: list(method(data, timeout=PATIENCE_S)))


@few
@given(message=messages(pb.GenerateRequest))
def test_random_requests(channel: grpc.Channel, message: Message) -> None:
    assert generate(channel, message.SerializeToString()) in CLEAN


@few
@given(params=messages(pb.SamplingParams))
def test_random_parameters_of_a_prompt(channel: grpc.Channel, params: Any) -> None:
    request = pb.GenerateRequest(text="def read", sampling_params=params)
    assert generate(channel, request.SerializeToString()) in CLEAN


@few
@given(data=spoiled(st.just(GOOD)))
def test_spoiled_requests(channel: grpc.Channel, data: bytes) -> None:
    assert generate(channel, data) in CLEAN


@few
@given(data=spoiled(messages(pb.AbortRequest)))
def test_other_methods(channel: grpc.Channel, data: bytes) -> None:
    for name in UNARY:
        method: Any = channel.unary_unary(f"/vllm.grpc.engine.VllmEngine/{name}")
        assert status(lambda method=method: method(data, timeout=PATIENCE_S)) in CLEAN
