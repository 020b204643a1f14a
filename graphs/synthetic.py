"""The dims of a synthetic Step-5 model: what speed is measured on where no release is at hand.

Knows which sizes make a model and the config.json that describes them; synthetic_weights.py draws
the tensors. Keeps true: the order of layers is the release's at any depth (full attention every
fourth layer, dense feed-forward in the first three and the last, sliding dense MTP layers).
"""

from dataclasses import dataclass
from typing import Any

from graphs.config import ModelConfig
from graphs.config_json import parse_config
from graphs.errors import ConfigError
from graphs.formats import NVFP4_BLOCK

FULL_EVERY = 4  # layers 3, 7, 11, ... have region-sparse attention
DENSE_FIRST, DENSE_LAST = 3, 1
POSITIONS = 1048576
LIMIT = 7.0
STOP_IDS = (1, 2)


@dataclass(frozen=True, kw_only=True)
class SyntheticDims:
    """Sizes of a synthetic model; the default keeps the release's proportions at hidden 1024.

    Query heads cover three times the hidden width, 16 of them on one KV head; the indexer has 4
    heads a group, together as wide as the model. The dense width is less than the release's 3.4
    times the hidden one, because 4 dense layers of 24 weigh more than 4 of 92.
    """

    hidden: int = 1024
    layers: int = 24
    mtp_layers: int = 3
    heads: int = 16
    groups: int = 1
    head_dim: int = 192
    window: int = 512
    dense_dim: int = 1152
    experts: int = 64
    chosen: int = 8
    expert_dim: int = 384
    vocab: int = 8192
    proxy_dim: int = 256
    index_heads: int = 4
    index_rope: int = 32
    top_regions: int = 512

    @property
    def moe_layers(self) -> range:
        return range(DENSE_FIRST, self.layers - DENSE_LAST)


SMALL = SyntheticDims(
    hidden=64,
    layers=8,
    heads=4,
    head_dim=24,
    window=16,
    dense_dim=96,
    experts=8,
    chosen=2,
    expert_dim=64,
    vocab=128,
    proxy_dim=32,
    index_heads=2,
    index_rope=8,
    top_regions=4,
)


def synthetic_config(dims: SyntheticDims) -> ModelConfig:
    """The model of these dims. Raises ConfigError, with the names, for dims that cannot run."""
    for name, value in vars(dims).items():
        if value < (0 if name == "mtp_layers" else 1):
            raise ConfigError(f"{name} = {value} is too small")
    if not dims.moe_layers:
        least = DENSE_FIRST + DENSE_LAST + 1
        raise ConfigError(
            f"layers = {dims.layers}: {DENSE_FIRST} dense layers come first and {DENSE_LAST} last, "
            f"so {least} is the least"
        )
    for name in ("hidden", "expert_dim"):
        if getattr(dims, name) % NVFP4_BLOCK:
            raise ConfigError(
                f"{name} = {getattr(dims, name)}: NVFP4 needs a multiple of {NVFP4_BLOCK}"
            )
    return parse_config(config_json(dims))


def config_json(dims: SyntheticDims) -> dict[str, Any]:
    """config.json, flat as in text-only uploads."""
    every = range(dims.layers + dims.mtp_layers)
    full = [n < dims.layers and n % FULL_EVERY == FULL_EVERY - 1 for n in every]
    return {
        "model_type": "step5",
        "architectures": ["Step5ForCausalLM"],
        "torch_dtype": "bfloat16",
        "hidden_size": dims.hidden,
        "intermediate_size": dims.dense_dim,
        "num_hidden_layers": dims.layers,
        "num_nextn_predict_layers": dims.mtp_layers,
        "vocab_size": dims.vocab,
        "tie_word_embeddings": False,
        "num_attention_heads": dims.heads,
        "num_attention_groups": dims.groups,
        "head_dim": dims.head_dim,
        "att_impl_type": "GQA",
        "use_head_wise_attn_gate": True,
        "layer_types": ["full_attention" if f else "sliding_attention" for f in full],
        "sliding_window": dims.window,
        "rope_theta": [1e7 if f else 1e4 for f in full],
        "partial_rotary_factors": [1 / 3 if f else 1.0 for f in full],
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "norm_dtype": "float32",
        "zero_centered": True,
        "fp32_residual_connection": True,
        "swiglu_limits": [LIMIT for _ in every],
        "swiglu_limits_shared": [LIMIT for _ in every],
        "bos_token_id": 0,
        "eos_token_id": list(STOP_IDS),
        "sparse_config": sparse_json(dims),
        "quantization_config": quant_json(dims),
        **moe_json(dims),
    }


def moe_json(dims: SyntheticDims) -> dict[str, Any]:
    """The keys of routed and shared experts."""
    return {
        "use_moe": True,
        "moe_layers_enum": ",".join(map(str, dims.moe_layers)),
        "moe_num_experts": dims.experts,
        "moe_top_k": dims.chosen,
        "moe_intermediate_size": dims.expert_dim,
        "share_expert_dim": dims.expert_dim,
        "use_moe_router_bias": True,
        "need_fp32_gate": True,
        "norm_expert_weight": True,
        "moe_router_scaling_factor": 3.0,
        "moe_router_activation": "sigmoid",
    }


def sparse_json(dims: SyntheticDims) -> dict[str, Any]:
    return {
        "enabled": True,
        "proxy_dim": dims.proxy_dim,
        "sparse_indexer_num_heads": dims.index_heads,
        "sparse_indexer_num_k_heads": 1,
        "sparse_indexer_rope_dim": dims.index_rope,
        "sparse_indexer_use_rope": True,
        "num_provider_groups": dims.groups,
        "topk": dims.top_regions,
        "region_block_size": 8,
        "apply_to_layer_types": ["full_attention"],
    }


def quant_json(dims: SyntheticDims) -> dict[str, Any]:
    """NVFP4 as modelopt announces it, with wildcards for all that is not."""
    mtp = [f"*layers.{dims.layers + depth}.*" for depth in range(dims.mtp_layers)]
    plain = ["lm_head", "model.embed_tokens", "*self_attn*", "*share_expert*", "*mlp.*"]
    return {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "group_size": NVFP4_BLOCK,
        "ignore": [*plain, "*moe.gate", *mtp],
    }
