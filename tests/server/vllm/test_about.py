"""What a worker says of itself to a gateway: health, model, server, load, tokenizer, cache."""

import asyncio
import hashlib
import io
import json
import zipfile
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
from fourstep.v1 import control_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from graphs.state import BLOCK
from server.cli_serve import open_served
from server.vllm import servicer
from server.vllm.files import Card
from server.vllm.servicer import VllmEngine
from tests.server.rpc.working import CONTEXT, Running, tiny_config, until
from tests.server.vllm.calling import Stub, calling, completes, tokens_request

PROMPT = list(range(20, 20 + 70))  # over a block, so that some of it is kept


def healthy(stub: Stub) -> bool:
    return stub.HealthCheck(pb.HealthCheckRequest()).healthy


def test_a_model_is_what_generate_accepts(both: tuple[Running, Stub], folder: Path) -> None:
    worker, stub = both
    info = stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (info.served_model_name, info.max_context_length) == ("tiny", CONTEXT)
    assert info.max_req_input_len == CONTEXT - 1
    assert Path(info.tokenizer_path) == Path(info.model_path) == folder.resolve()
    assert list(info.eos_token_ids) == list(worker.served.config.stop_ids)
    assert info.vocab_size == worker.served.config.vocab_size
    assert (info.is_generation, info.supports_vision) == (True, False)
    assert info.bos_token_id == worker.served.config.bos_id
    config = json.loads((folder / "config.json").read_text())
    assert (info.model_type, list(info.architectures)) == (
        config["model_type"],
        config["architectures"],
    )
    assert json.loads(info.default_sampling_params_json or "{}") == Card.open(folder).defaults


def test_a_server_tells_where_its_constraints_begin(stub: Stub) -> None:
    info = stub.GetServerInfo(pb.GetServerInfoRequest())
    assert info.constrained_decoding_start == "after_reasoning"
    assert (info.max_num_seqs, info.data_parallel_size, info.is_paused) == (2, 1, False)
    assert not info.mm_processor
    assert (info.server_type, info.active_requests) == ("vllm-grpc", 0)
    assert (info.model_dtype, info.kv_cache_dtype) == ("torch.bfloat16", "bfloat16")
    assert info.block_size == BLOCK
    assert info.uptime_seconds > 0


def test_loads_are_of_now_and_of_lately(both: tuple[Running, Stub]) -> None:
    worker, stub = both
    calls = [stub.Generate(tokens_request(PROMPT, max_tokens=180)) for _ in range(3)]
    next(calls[0])
    until(lambda: worker.served.service.load["queued"] == 1)
    told = stub.GetLoads(pb.GetLoadsRequest())
    assert (told.version, told.dp_rank_count) == (version("fourstep"), 1)
    assert datetime.fromisoformat(told.timestamp).tzinfo is not None
    [load] = told.loads
    assert load.max_total_num_tokens == worker.served.service.load["blocks"] * BLOCK
    assert load.utilization == 1
    assert 0 <= load.cache_hit_rate <= 1
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (2, 1, 3)
    assert load.max_running_requests == 2
    assert load.num_waiting_uncached_tokens >= len(PROMPT)
    assert 0 < load.token_usage <= 1
    assert load.num_used_tokens >= len(PROMPT)
    assert load.gen_throughput > 0
    for call in calls:
        call.cancel()
    until(lambda: not worker.served._open)
    [load] = stub.GetLoads(pb.GetLoadsRequest()).loads
    assert load.num_waiting_uncached_tokens == 0


def test_the_tokenizer_comes_as_an_archive(
    stub: Stub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "CHUNK", 1000)
    chunks = list(stub.GetTokenizer(common_pb2.GetTokenizerRequest()))
    data = b"".join(chunk.data for chunk in chunks)
    digests = [chunk.sha256 for chunk in chunks]
    assert digests == [""] * (len(chunks) - 1) + [hashlib.sha256(data).hexdigest()]
    assert {len(chunk.data) for chunk in chunks[:-1]} == {1000}
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        assert set(zipped.namelist()) >= {"tokenizer.json", "chat_template.jinja", "config.json"}
        assert not any(name.endswith(".safetensors") for name in zipped.namelist())
        assert zipped.read("tokenizer.json") == (folder / "tokenizer.json").read_bytes()


def test_the_prefix_cache_is_emptied(both: tuple[Running, Stub]) -> None:
    worker, stub = both
    request = tokens_request(PROMPT, max_tokens=1, stream=False)

    def cached() -> int:
        return completes(list(stub.Generate(request)))[0].cached_tokens

    def flushed(timeout: float) -> bool:
        return stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=timeout)).success

    cached()
    assert cached() == 64
    assert flushed(0)
    assert cached() == 0
    call = stub.Generate(tokens_request(PROMPT, max_tokens=180))
    next(call)
    assert not flushed(0)  # what a running answer uses stays
    call.cancel()
    assert flushed(60)
    assert len(worker.served.service._scheduler.seats.memory.cache) == 0
    for bad in (-1.0, float("nan")):
        with pytest.raises(grpc.RpcError) as caught:
            flushed(bad)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_health_names_the_service_that_is_here(both: tuple[Running, Stub]) -> None:
    worker, stub = both
    assert healthy(stub)
    with grpc.insecure_channel(worker.worker.listeners[1].address) as channel:
        ask = health_pb2_grpc.HealthStub(channel).Check  # pyright: ignore[reportAttributeAccessIssue]
        request = health_pb2.HealthCheckRequest(service="vllm.grpc.engine.VllmEngine")
        assert ask(request).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            ask(health_pb2.HealthCheckRequest(service="fourstep.v1.Inference"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_worker_that_leaves_is_not_healthy_and_finishes(folder: Path) -> None:
    with calling(folder, grace_s=0.5) as (worker, stub):
        call = stub.Generate(tokens_request(PROMPT, max_tokens=60))
        first = next(call)
        worker.control.Drain(control_pb2.DrainRequest(timeout_seconds=60))
        until(lambda: not healthy(stub))
        until(lambda: worker.served.draining)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(tokens_request(PROMPT)))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert len(completes([first, *call])[0].output_ids) == 60
    assert worker.code == 0


def test_a_failed_engine_is_not_healthy(folder: Path) -> None:
    served = open_served(tiny_config(folder))
    engine = VllmEngine(served, deadline_cap=1.0)

    def healthy_now() -> bool:
        return asyncio.run(engine.HealthCheck(pb.HealthCheckRequest(), None)).healthy

    def broken() -> None:
        raise RuntimeError("broken")

    assert healthy_now()
    served.service._post(broken)
    until(lambda: served.service.fault is not None)
    assert not healthy_now()
    served.service.close()


def test_an_engine_that_fails_ends_its_requests_with_internal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calling(folder) as (worker, stub):

        def broken() -> None:
            raise RuntimeError("a broken step")

        monkeypatch.setattr(worker.served.service._scheduler, "step", broken)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(tokens_request(PROMPT)))
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        until(lambda: worker.code is not None)
    assert worker.code == 1
