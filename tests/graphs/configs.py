"""config.json of the full-size models, written out from the tables of architecture 1.

Knows the release (nested, 92 + 3 layers) and its dense relative (45 + 3 layers, flat), and how to
change one of them. Keeps true: every call gives a fresh object that a test may change, and
parsing an unchanged one warns of nothing.
"""

import json
import warnings
from collections.abc import Callable
from typing import Any

from graphs.config import ModelConfig
from graphs.config_json import parse_config

SLIDING, FULL = "sliding_attention", "full_attention"
DEPTH, MTP = 92, 3
Json = dict[str, Any]


def release() -> Json:
    """The Step-5 upload: text, sparse and vision sections with every key of the tables."""
    return {
        "model_type": "step5_vl",
        "architectures": ["Step5ForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_step_robotics.StepRoboticsConfig"},
        "understand_projector_stride": 2,
        "projector_bias": False,
        "image_token_id": 128001,
        "image_token_len": 169,
        "patch_token_len": 81,
        "im_start_token": "<im_start>",
        "im_end_token": "<im_end>",
        "im_patch_token": "<im_patch>",
        "use_im_start_end": True,
        "vision_select_layer": -1,
        "text_config": text_section(),
        "vision_config": vision_section(),
    }


def text_section() -> Json:
    period = (SLIDING, SLIDING, SLIDING, FULL)
    kinds = [period[i % 4] if i < DEPTH else SLIDING for i in range(DEPTH + MTP)]
    return {
        "model_type": "step5",
        "hidden_size": 4096,
        "intermediate_size": 13824,
        "num_hidden_layers": DEPTH,
        "vocab_size": 128896,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "num_attention_heads": 64,
        "num_attention_groups": 4,
        "head_dim": 192,
        "attention_other_setting": {
            "attention_type": SLIDING,
            "num_attention_heads": 64,
            "num_attention_groups": 4,
            "head_dim": 192,
            "true_head_dim": 192,
        },
        "att_impl_type": "GQA",
        "use_head_wise_attn_gate": True,
        "layer_types": kinds,
        "sliding_window": 512,
        "rope_theta": [1e7 if kind == FULL else 1e4 for kind in kinds],
        "partial_rotary_factors": [1 / 3 if kind == FULL else 1.0 for kind in kinds],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 1.0,
            "original_max_position_embeddings": 1048576,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
        "yarn_only_types": [FULL],
        "max_position_embeddings": 1048576,
        "max_seq_len": 1048576,
        "rms_norm_eps": 1e-5,
        "norm_dtype": "float32",
        "zero_centered": True,
        "fp32_residual_connection": True,
        "use_moe": True,
        "moe_num_experts": 352,
        "moe_top_k": 8,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536,
        "share_expert_dim": 1536,
        "moe_layers_enum": ",".join(str(i) for i in range(3, 91)),
        "moe_layer_list": list(range(3, 91)),
        "use_moe_router_bias": True,
        "need_fp32_gate": True,
        "norm_expert_weight": True,
        "moe_router_scaling_factor": 3.0,
        "moe_router_activation": "sigmoid",
        "swiglu_limits": [7.0] * len(kinds),
        "swiglu_limits_shared": [7.0] * len(kinds),
        "num_nextn_predict_layers": MTP,
        "bos_token_id": 0,
        "eos_token_id": [1, 2],
        "sparse_config": sparse_section(),
    }


def sparse_section() -> Json:
    return {
        "enabled": True,
        "proxy_dim": 256,
        "sparse_indexer_num_heads": 16,
        "sparse_indexer_num_k_heads": 1,
        "sparse_indexer_rope_dim": 32,
        "sparse_indexer_use_rope": True,
        "sparse_indexer_q_norm_type": "rmsnorm",
        "sparse_indexer_k_norm_type": "layernorm",
        "sparse_indexer_csa_z_norm_type": "none",
        "sparse_indexer_softmax_variant": "ssmax",
        "sparse_indexer_ssmax_s_granularity": "q_head",
        "num_provider_groups": 4,
        "topk": 512,
        "region_block_size": 8,
        "compression_method": "csa_block_compress",
        "attention_impl": "sparse_gqa",
        "apply_to_layer_types": [FULL],
    }


def vision_section() -> Json:
    return {
        "model_type": "perception_encoder",
        "width": 1536,
        "layers": 47,
        "heads": 16,
        "patch_size": 14,
        "image_size": 728,
        "mlp_ratio": 8960 / 1536,
        "hidden_act": "quick_gelu",
        "output_dim": None,
        "use_cls_token": False,
        "use_abs_posemb": True,
        "use_rope2d": True,
        "use_ln_pre": True,
        "use_ln_post": False,
        "ls_init_value": 0.1,
        "layer_norm_eps": 1e-5,
        "drop_path": 0,
        "pool_type": "none",
        "attn_pooler_heads": 8,
    }


def relative() -> Json:
    """Step-3.5/3.7: dense attention, more heads on sliding layers, clamp on 43 and 44 only."""
    kinds = [FULL if i % 4 == 0 and i < 45 else SLIDING for i in range(48)]
    return {
        "model_type": "step3p5",
        "architectures": ["Step3p5ForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 11264,
        "num_hidden_layers": 45,
        "vocab_size": 128896,
        "torch_dtype": "bfloat16",
        "num_attention_heads": 64,
        "num_attention_groups": 8,
        "head_dim": 128,
        "attention_other_setting": {
            "attention_type": SLIDING,
            "num_attention_heads": 96,
            "num_attention_groups": 8,
            "head_dim": 128,
            "true_head_dim": 128,
        },
        "att_impl_type": "GQA",
        "use_head_wise_attn_gate": True,
        "layer_types": kinds,
        "sliding_window": 512,
        "use_rope_layers": [],
        "rope_theta": [5e6 if kind == FULL else 1e4 for kind in kinds],
        "partial_rotary_factors": [0.5 if kind == FULL else 1.0 for kind in kinds],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 2.0,
            "original_max_position_embeddings": 131072,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
        "yarn_only_types": [FULL],
        "max_position_embeddings": 262144,
        "max_seq_len": 262144,
        "rms_norm_eps": 1e-5,
        "zero_centered": True,
        "use_moe": True,
        "moe_num_experts": 288,
        "moe_top_k": 8,
        "moe_intermediate_size": 1280,
        "share_expert_dim": 1280,
        "moe_layers_enum": ",".join(str(i) for i in range(3, 45)),
        "use_moe_router_bias": True,
        "need_fp32_gate": True,
        "norm_expert_weight": True,
        "moe_router_scaling_factor": 3.0,
        "moe_router_activation": "sigmoid",
        "swiglu_limits": [7.0 if i in (43, 44) else 0.0 for i in range(48)],
        "swiglu_limits_shared": [16.0 if i in (43, 44) else 0.0 for i in range(48)],
        "num_nextn_predict_layers": 3,
        "bos_token_id": 0,
        "eos_token_id": [1, 2, 128007],
    }


def nested(text: Json) -> Json:
    """A flat config as the text section of a multimodal one."""
    return {"model_type": "step3p7", "text_config": {**text, "model_type": "step3p5"}}


def edited(change: Callable[[Json], object], base: Callable[[], Json] = release) -> Json:
    """A fresh config whose text section `change` has edited in place."""
    config = base()
    change(config.get("text_config", config))
    return config


def parse(config: Json, *, ssmax: bool = False) -> ModelConfig:
    """Parse what a JSON file would hold; a warning is an error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return parse_config(json.loads(json.dumps(config)), ssmax=ssmax)


def changed(**keys: object) -> ModelConfig:
    """The release with keys of its text section replaced; None for a key means JSON null."""
    return parse(edited(lambda text: text.update(keys)))


def renamed(old: str, new: str, *, keep: bool = False) -> Callable[[Json], None]:
    def change(text: Json) -> None:
        text[new] = text[old]
        if not keep:
            del text[old]

    return change


def without(*keys: str) -> Callable[[Json], None]:
    def change(text: Json) -> None:
        for key in keys:
            del text[key]

    return change


def put(**keys: Any) -> Callable[[Json], None]:
    return lambda text: text.update(keys)
