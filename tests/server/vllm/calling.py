"""A client of the gateway protocol for a worker that has a listener of each protocol."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from server.config import ListenerConfig
from tests.server.rpc.working import ANYWHERE, Running, running

VLLM = ListenerConfig(address="127.0.0.1:0", protocol="vllm")
Stub = Any  # its methods are made at run time


@contextmanager
def calling(folder: Path, **changes: Any) -> Iterator[tuple[Running, Stub]]:
    """A worker and a stub of its second listener."""
    with (
        running(folder, listeners=(ANYWHERE, VLLM), **changes) as worker,
        grpc.insecure_channel(worker.worker.listeners[1].address) as channel,
    ):
        yield worker, vllm_engine_pb2_grpc.VllmEngineStub(channel)


def tokens_request(
    ids: list[int], *, stream: bool = True, request_id: str = "", **sampling: Any
) -> pb.GenerateRequest:
    values: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.0, **sampling}
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=ids),
        sampling_params=pb.SamplingParams(**values),
        stream=stream,
    )


def completes(messages: list[pb.GenerateResponse]) -> dict[int, pb.GenerateComplete]:
    """The one complete message of each answer; nothing of an answer comes after it."""
    found: dict[int, pb.GenerateComplete] = {}
    for message in messages:
        one = message.complete if message.HasField("complete") else message.chunk
        assert one.index not in found
        if message.HasField("complete"):
            found[one.index] = message.complete
    return found
