"""What a worker says of itself in vllm.grpc.engine: model, server, load.

Knows messages, one Served and the checkpoint's card. Keeps true: what is told is what Generate
accepts; a field that means nothing here stays unset.
"""

import json
from datetime import UTC, datetime
from importlib.metadata import version

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from graphs.state import BLOCK
from server.rpc.served import Served
from server.vllm.files import Card
from server.vllm.traffic import Traffic

DTYPES = {"bf16": "torch.bfloat16", "fp32": "torch.float32"}


def model_info(served: Served, card: Card) -> pb.GetModelInfoResponse:
    config = served.config
    return pb.GetModelInfoResponse(
        model_path=str(served.folder),
        tokenizer_path=str(served.folder),
        served_model_name=served.identity.name,
        is_generation=True,
        max_context_length=served.context,
        max_req_input_len=served.context - 1,
        vocab_size=config.vocab_size,
        supports_vision=False,
        model_type=card.model_type,
        architectures=card.architectures,
        eos_token_ids=config.stop_ids,
        bos_token_id=config.bos_id,
        pad_token_id=card.pad_id,
        default_sampling_params_json=json.dumps(card.defaults) if card.defaults else "",
    )


def server_info(served: Served, traffic: Traffic, *, uptime: float) -> pb.GetServerInfoResponse:
    dtype = DTYPES[served.identity.precision]
    load = served.service.load
    return pb.GetServerInfoResponse(
        active_requests=load["queued"] + load["loading"] + load["running"],
        is_paused=False,
        last_receive_timestamp=traffic.received,
        uptime_seconds=uptime,
        server_type="vllm-grpc",  # what a gateway knows this protocol's workers by
        data_parallel_size=1,
        block_size=BLOCK,
        model_dtype=dtype,
        kv_cache_dtype=dtype.removeprefix("torch."),
        max_num_seqs=served.slots,
        # A constraint waits for </think> where the prompt leaves the model thinking.
        constrained_decoding_start="after_reasoning",
    )


def loads(served: Served, traffic: Traffic) -> pb.GetLoadsResponse:
    load = served.service.load
    running, total = load["loading"] + load["running"], load["blocks"]
    one = pb.SchedulerLoad(
        num_running_reqs=running,
        num_waiting_reqs=load["queued"],
        num_total_reqs=running + load["queued"],
        num_used_tokens=load["blocks_used"] * BLOCK,
        max_total_num_tokens=total * BLOCK,
        token_usage=load["blocks_used"] / total,
        gen_throughput=traffic.tokens_per_second,
        cache_hit_rate=traffic.cached_share,
        utilization=running / served.slots,
        max_running_requests=served.slots,
        num_waiting_uncached_tokens=traffic.waiting_tokens,
    )
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        version=version("fourstep"),
        dp_rank_count=1,
        loads=[one],
    )
