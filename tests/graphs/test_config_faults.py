"""What a config must not say: each fault is a ConfigError that names the key and the value.

Architecture 1; faults B10 and B11 (an unsupported value is an error, also for unknown lengths).
"""

from typing import Any

import pytest

from graphs.errors import ConfigError
from tests.graphs.configs import (
    DEPTH,
    FULL,
    MTP,
    SLIDING,
    Json,
    edited,
    parse,
    put,
    relative,
    release,
    without,
)

LONG = DEPTH + MTP
KINDS = release()["text_config"]["layer_types"]


def refused(config: Json, *words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(config)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("layer_norm_eps", 1.0),
        ("att_impl_type", "MFA"),
        ("use_head_wise_attn_gate", False),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("layer_norm_eps", 1e-6),
        ("tie_word_embeddings", True),
        ("norm_dtype", "bfloat16"),
        ("zero_centered", False),
        ("zero_centered", 1),
        ("use_moe_router_bias", False),
        ("need_fp32_gate", False),
        ("norm_expert_weight", False),
        ("moe_router_activation", "softmax"),
        ("model_type", "llama"),
        ("use_rope_layers", [True] * 94 + [False]),
        ("layer_types", ["linear_attention"] * LONG),
        ("layer_types", "full"),
        ("layer_types", [*KINDS[:DEPTH], SLIDING, SLIDING, FULL]),
        ("yarn_only_types", ["full"]),
        ("yarn_only_types", FULL),
        ("mlp_layer_types", ["moe"] * DEPTH),
        ("mlp_layer_types", "sparse"),
        ("moe_layers_enum", "3-90"),
        ("moe_layers_enum", "3,4.0"),
        ("moe_layers_enum", 3.0),
        ("moe_layer_list", ["3"]),
        ("swiglu_limits", [7.0] * 91),
        ("swiglu_limits", [7.0] * 96),
        ("swiglu_limits", 7.0),
        ("swiglu_limits", 0),
        ("swiglu_limits", [True] * LONG),
        ("swiglu_limits", [-7.0] * LONG),
        ("swiglu_limits_shared", [7.0]),
        ("swiglu_limits_shared", ["7"] * LONG),
        ("rope_theta", [1e4] * 45),
        ("rope_theta", "10000"),
        ("rope_theta", 0),
        ("rope_theta", None),
        ("partial_rotary_factors", 0),
        ("partial_rotary_factors", 1.5),
        ("partial_rotary_factors", 0.17),
        ("partial_rotary_factors", [0.5, None]),
        ("rope_scaling", "llama3"),
        ("sliding_window", 0),
        ("sliding_window", None),
        ("sliding_window", 512.0),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", True),
        ("num_hidden_layers", "92"),
        ("num_nextn_predict_layers", -1),
        ("num_nextn_predict_layers", False),
        ("num_nextn_predict_layers", 10**12),
        ("hidden_size", 4096.0),
        ("vocab_size", 10**30),
        ("rms_norm_eps", -1e-5),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", None),
        ("moe_router_scaling_factor", float("inf")),
        ("moe_router_scaling_factor", 10**400),
        ("fp32_residual_connection", "false"),
        ("use_moe", 1),
        ("bos_token_id", False),
        ("bos_token_id", -1),
        ("eos_token_id", ["1"]),
        ("eos_token_id", False),
        ("head_dim", 1),
        ("num_attention_heads", 62),
        ("num_sliding_attention_heads", 0),
        ("sparse_config", [1]),
        ("attention_other_setting", 96),
    ],
)
def test_values_of_the_text_section(key: str, value: Any) -> None:
    words = (key,) if isinstance(value, list) else (key, repr(value))
    refused(edited(put(**{key: value})), *words)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sparse_indexer_num_k_heads", 2),
        ("num_k_heads", True),
        ("sparse_indexer_use_rope", False),
        ("sparse_indexer_q_norm_type", "layernorm"),
        ("k_norm_type", "rmsnorm"),
        ("sparse_indexer_csa_z_norm_type", "rmsnorm"),
        ("compression_method", "mean"),
        ("attention_impl", "dense"),
        ("apply_to_layer_types", [FULL, SLIDING]),
        ("enabled", "true"),
        ("region_block_size", 16),
        ("topk", 0),
        ("topk", 1025),
        ("proxy_dim", "256"),
        ("proxy_dim", 16),  # less than the rope dims
        ("sparse_indexer_rope_dim", 31),
        ("sparse_indexer_num_heads", 18),
        ("num_provider_groups", 8),
        ("index_tp_size", 2),
    ],
)
def test_values_of_the_sparse_section(key: str, value: Any) -> None:
    config = edited(lambda text: text["sparse_config"].update({key: value}))
    refused(config, key.removeprefix("sparse_indexer_").removesuffix("_block_size"), str(value))


@pytest.mark.parametrize("name", ["step5_sparse_config", "step3p5_sparse_config"])
def test_section_names_that_upstream_refuses(name: str) -> None:
    refused(edited(put(**{name: {"topk": 512}})), name)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_type", "yarn"),
        ("factor", 0),
        ("factor", "2"),
        ("low_freq_factor", 0),
        ("high_freq_factor", 1.0),  # not above the low one
        ("original_max_position_embeddings", 0),
    ],
)
def test_values_of_rope_scaling(key: str, value: Any) -> None:
    config = edited(lambda text: text["rope_scaling"].update({key: value}))
    refused(config, f"rope_scaling.{key}", repr(value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quant_method", "awq"),
        ("quant_method", None),
        ("quant_algo", "W4A8_AWQ"),
        ("group_size", 32),
        ("weight_block_size", [128]),
        ("weight_block_size", [128, 0]),
        ("ignore", "lm_head"),
        ("modules_to_not_convert", [1]),
        ("quantization", "NVFP4"),
    ],
)
def test_values_of_the_quantisation_section(key: str, value: Any) -> None:
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", key: value}
    words = (key,) if value is None else (key, str(value))
    refused({**release(), "quantization_config": section}, *words)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("width", 0),
        ("layers", "47"),
        ("mlp_ratio", -1),
        ("mlp_ratio", 1e308),
        ("patch_size", None),
    ],
)
def test_values_of_the_vision_section(key: str, value: Any) -> None:
    config = release()
    config["vision_config"][key] = value
    refused(config, f"vision_config.{key}", repr(value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image_token_id", "128001"),
        ("projector_bias", "no"),
        ("vision_config", True),
        ("text_config", [1]),
        ("model_type", "qwen3_vl"),
        ("model_type", ["step5"]),
    ],
)
def test_values_at_top_level(key: str, value: Any) -> None:
    refused({**release(), key: value}, key, repr(value))


CONTRADICTIONS: dict[str, Json] = {
    "moe_layer_list": {"moe_layer_list": list(range(2, 91))},
    "moe_layers_enum": {"moe_layers_enum": "3,4"},
    "mlp_layer_types": {"mlp_layer_types": ["dense"] * DEPTH},
    "num_experts_per_tok": {"num_experts_per_tok": 4},
    "max_seq_len": {"max_seq_len": 4096},
    "num_mtp_layers": {"num_mtp_layers": 1},
    "share_expert_dims": {"share_expert_dims": 1280},
    "num_key_value_heads": {"num_key_value_heads": 8},
    "layer_types_with_mtp": {"layer_types_with_mtp": [SLIDING] * LONG},
    "num_sliding_attention_heads": {"num_sliding_attention_heads": 96},
    "head_dim_sliding_attention": {"head_dim_sliding_attention": 128},
    "num_attention_groups_sliding_attention": {"num_attention_groups_sliding_attention": 8},
}


@pytest.mark.parametrize("key", CONTRADICTIONS)
def test_two_spellings_that_contradict_each_other(key: str) -> None:
    refused(edited(put(**CONTRADICTIONS[key])), key, "contradicts")


def test_quantisation_sections_that_contradict_each_other() -> None:
    config: Json = {**release(), "quantization_config": {"quant_method": "fp8"}}
    config["text_config"]["quantization_config"] = {"quant_method": "modelopt"}
    refused(config, "quantization_config", "contradicts", "fp8", "modelopt")


def test_a_head_dim_that_contradicts_the_true_one() -> None:
    config = edited(lambda text: text["attention_other_setting"].update(true_head_dim=128))
    refused(config, "head_dim = 192", "true_head_dim = 128")


def test_another_setting_for_an_unknown_layer_type() -> None:
    config = edited(lambda text: text["attention_other_setting"].update(attention_type="linear"))
    refused(config, "attention_type", "'linear'")


def test_moe_layers_lie_in_the_backbone() -> None:
    change = put(moe_layers_enum="3,92", moe_layer_list=None)
    refused(edited(change), "moe_layers_enum", "92")


def test_more_experts_chosen_than_there_are() -> None:
    refused(edited(put(moe_top_k=353, num_experts_per_tok=353)), "moe_top_k = 353", "352")


@pytest.mark.parametrize("length", [91, 93, 96])
def test_layer_lists_of_another_length(length: int) -> None:
    refused(edited(put(layer_types=[SLIDING] * length)), "layer_types", str(length), "92", "95")


NEEDED = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "layer_types"),
    *("num_attention_heads", "num_attention_groups", "head_dim", "rope_theta", "sliding_window"),
    *("moe_num_experts", "moe_intermediate_size", "share_expert_dim"),
    "moe_router_scaling_factor",
)


@pytest.mark.parametrize("key", NEEDED)
@pytest.mark.parametrize("base", [release, relative])
def test_keys_without_which_nothing_runs(key: str, base: Any) -> None:
    refused(edited(without(key), base), key)


@pytest.mark.parametrize(
    "key", ["proxy_dim", "num_heads", "rope_dim", "num_provider_groups", "topk"]
)
def test_keys_without_which_sparse_attention_does_not_run(key: str) -> None:
    def change(text: Json) -> None:
        section = text["sparse_config"]
        text["sparse_config"] = {k: v for k, v in section.items() if not k.endswith(key)}

    refused(edited(change), "sparse_config: missing key", key)
