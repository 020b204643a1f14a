"""How calls of vllm.grpc.engine end other than well: refused, aborted, left, late, not done."""

import threading
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from server.rpc import served
from server.rpc.served import Asked
from tests.server.rpc.working import CONTEXT, Running, until
from tests.server.vllm.calling import Stub, tokens_request

LONG = 200  # tokens


def idle(worker: Running) -> None:
    """Waits until nothing runs; every block is back."""
    phases = ("queued", "loading", "running")
    until(lambda: not any(worker.served.service.load[phase] for phase in phases))
    assert worker.served.service.load["blocks_used"] == 0


def with_(**fields: Any) -> pb.GenerateRequest:
    request = tokens_request([1, 2])
    request.MergeFrom(pb.GenerateRequest(**fields))
    return request


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (pb.GenerateRequest(), "INVALID_ARGUMENT", "input"),
        (tokens_request([]), "INVALID_ARGUMENT", "empty"),
        (tokens_request([2**31]), "INVALID_ARGUMENT", "outside"),
        (tokens_request([1] * CONTEXT), "INVALID_ARGUMENT", "no room"),
        (tokens_request([1], temperature=-1), "INVALID_ARGUMENT", "temperature"),
        (tokens_request([1], top_p=1.5), "INVALID_ARGUMENT", "top_p"),
        (tokens_request([1], logprobs=-1), "INVALID_ARGUMENT", "logprobs"),
        (tokens_request([1], max_tokens=0), "INVALID_ARGUMENT", "max_tokens"),
        (tokens_request([1], n=129), "INVALID_ARGUMENT", "n = 129"),
        (tokens_request([1], logit_bias={-1: 1.0}), "INVALID_ARGUMENT", "logit_bias"),
        (tokens_request([1], json_schema="{"), "INVALID_ARGUMENT", "constraint json_schema"),
        (tokens_request([1], truncate_prompt_tokens=5), "UNIMPLEMENTED", "truncate_prompt_tokens"),
        (with_(mm_inputs=pb.MultimodalInputs()), "UNIMPLEMENTED", "mm_inputs"),
        (with_(media_refs=pb.MediaRefs()), "UNIMPLEMENTED", "media_refs"),
        (with_(kv_transfer_params_json="{}"), "UNIMPLEMENTED", "kv_transfer_params_json"),
        (with_(data_parallel_rank=1), "INVALID_ARGUMENT", "data_parallel_rank"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    stub: Stub, request_: pb.GenerateRequest, code: str, words: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(request_))
    assert caught.value.code() == grpc.StatusCode[code]
    assert words in (caught.value.details() or "")


def aborted(stub: Stub, *names: str) -> None:
    stub.Abort(pb.AbortRequest(request_ids=names))


def test_abort_ends_the_stream_and_again_is_no_error(
    worker: Running, stub: Stub, ids: list[int]
) -> None:
    for stream in (True, False):
        request = tokens_request(ids, request_id="mine", max_tokens=LONG, stream=stream, n=2)
        call = stub.Generate(request)
        until(lambda: worker.served.service.load["running"] > 0)
        aborted(stub, "nobody", "mine")
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() == grpc.StatusCode.CANCELLED
        aborted(stub, "mine")
        idle(worker)


def test_abort_ends_what_waits_and_what_is_being_read(
    worker: Running, stub: Stub, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [stub.Generate(tokens_request(ids, max_tokens=LONG)) for _ in range(2)]
    until(lambda: worker.served.service.load["running"] == 2)
    waits = stub.Generate(tokens_request(ids, request_id="waits"))
    until(lambda: worker.served.service.load["queued"] == 1)
    gate, read = threading.Event(), worker.served.tokens

    def slow(ids: tuple[int, ...]) -> Asked:
        assert gate.wait(60)
        return read(ids)

    monkeypatch.setattr(worker.served, "tokens", slow)
    monkeypatch.setattr(served, "SMALL", -1)  # it is read beside the event loop
    is_read = stub.Generate(tokens_request(ids, request_id="read"))
    until(lambda: len(worker.served._open) == 4)
    aborted(stub, "waits", "read")
    for call in (waits, is_read):
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() == grpc.StatusCode.CANCELLED
    gate.set()
    for call in running:
        call.cancel()
    idle(worker)


def test_who_goes_away_frees_the_slot(worker: Running, stub: Stub, ids: list[int]) -> None:
    for stream in (True, False):
        call = stub.Generate(tokens_request(ids, max_tokens=LONG, stream=stream))
        until(lambda: worker.served.service.load["running"] == 1)
        call.cancel()
        idle(worker)


def test_a_deadline_ends_the_request(worker: Running, stub: Stub, ids: list[int]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(tokens_request(ids, max_tokens=LONG), timeout=0.2))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    idle(worker)


def test_a_full_queue_is_resource_exhausted(worker: Running, stub: Stub, ids: list[int]) -> None:
    gate = threading.Event()
    worker.served.service._post(gate.wait)  # nothing is admitted meanwhile
    calls = [stub.Generate(tokens_request(ids, max_tokens=1, n=4)) for _ in range(2)]
    until(lambda: len(worker.served._open) == 2)
    gate.set()
    with pytest.raises(grpc.RpcError) as caught:
        [list(call) for call in calls]
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    idle(worker)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("Embed", pb.EmbedRequest()),
        ("StartProfile", common_pb2.StartProfileRequest()),
        ("StopProfile", common_pb2.StopProfileRequest()),
        ("SubscribeKvEvents", common_pb2.SubscribeKvEventsRequest()),
    ],
)
def test_what_is_not_done_says_so(stub: Stub, name: str, request_: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(getattr(stub, name)(request_))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert name in (caught.value.details() or "")
