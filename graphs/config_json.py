"""config.json -> ModelConfig, in every spelling that uploads of this family use.

Knows key names, their aliases and the values that can be run. Does not know tensors. Keeps true: a
key is read, checked against the one supported value, known to be irrelevant, or named in a warning;
never silently dropped. Architecture section 1 (spellings), 1.2 (clamp and layer-list rules), 8
(open points).
"""

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphs.config import ModelConfig, MoeConfig, QuantConfig, VisionConfig
from graphs.config_keys import Keys, integer, integers, positive, read_json, strings
from graphs.config_layers import parse_layers
from graphs.config_sparse import parse_sparse
from graphs.errors import ConfigError

MODEL_TYPES = (
    *("step5", "step5_vl", "step5_text", "step4", "step3p5v", "step3p5", "step3p7"),
    *("step3p5_text", "step3p7_text"),
)

QUANT_METHODS = ("modelopt", "modelopt_fp4", "fp8", "compressed-tensors")
QUANT_ALGOS = ("NVFP4", "W4A16_NVFP4")
NVFP4_GROUP = 16
EXCLUDE_KEYS = ("ignore", "exclude_modules", "modules_to_not_convert")

# Says something about training, other runtimes or preprocessing; changes nothing that is computed
# here.
IRRELEVANT = (
    *("architectures", "auto_map", "torch_dtype", "dtype", "transformers_version", "use_cache"),
    *("initializer_range", "pad_token_id", "attention_dropout", "output_router_logits"),
    *("understand_projector_stride", "image_token_len", "patch_token_len", "im_start_token"),
    *("im_end_token", "im_patch_token", "use_im_start_end", "vision_select_layer"),
    *("max_seq_len", "_name_or_path", "tokenizer_class"),
)


def load_config(folder: Path, *, ssmax: bool = False) -> ModelConfig:
    """Read FOLDER/config.json; generation_config.json adds its stop ids when it is there."""
    model = parse_config(read_json(folder / "config.json"), ssmax=ssmax)
    generation = folder / "generation_config.json"
    if not generation.exists():
        return model
    extra = _ids(read_json(generation).get("eos_token_id"), f"{generation}: eos_token_id")
    return dataclasses.replace(model, stop_ids=tuple(sorted({*model.stop_ids, *extra})))


def parse_config(config: Mapping[str, Any], *, ssmax: bool = False) -> ModelConfig:
    """Read a parsed config.json, nested (text_config) or flat.

    `ssmax` turns on the unproven reading of ssmax_s (architecture 3.6); no upload asks for it.
    Raises ConfigError naming key and value for what is missing, contradictory or unsupported; warns
    once with the names of all keys it does not know.
    """
    top = Keys(config, "config.json")
    text = top.section("text_config") or top
    for keys in {id(top): top, id(text): text}.values():
        keys.one_of("model_type", MODEL_TYPES)
        keys.ignore(*IRRELEVANT)
    quant = parse_quant(top.section("quantization_config"))
    quant_text = parse_quant(text.section("quantization_config"))  # a copy, or the only one
    if quant and quant_text and quant != quant_text:
        raise ConfigError(
            f"quantization_config = {quant} contradicts the one in text_config, {quant_text}"
        )
    bias = top.flag("projector_bias", default=False)
    vision = _parse_vision(top.section("vision_config"), projector_bias=bias)
    image_token = top.take("image_token_id", default=None)
    if image_token is not None:
        integer(image_token, "image_token_id")
    model = _parse_text(text, ssmax=ssmax)
    if unknown := sorted(top.unread()):
        warnings.warn(f"config.json: unknown keys ignored: {', '.join(unknown)}", stacklevel=2)
    return dataclasses.replace(
        model, quant=quant or quant_text, vision=vision, image_token_id=image_token
    )


def _parse_text(text: Keys, *, ssmax: bool) -> ModelConfig:
    text.only("att_impl_type", "GQA")
    text.only("use_head_wise_attn_gate", True)
    text.only("attention_bias", False)
    text.only("mlp_bias", False)
    text.one_of("hidden_act", ("silu", "swish"))
    text.only("layer_norm_eps", 1e-5)
    text.only("tie_word_embeddings", False)
    text.only("norm_dtype", "float32")
    text.only("zero_centered", True)
    eos = _ids(text.take("eos_token_id", default=None), "eos_token_id")
    bos = text.take("bos_token_id", default=None)
    layers = parse_layers(text)
    depth = integer(text.take("num_hidden_layers"), "num_hidden_layers", least=1)
    return ModelConfig(
        hidden_dim=integer(text.take("hidden_size"), "hidden_size", least=1),
        dense_dim=integer(text.take("intermediate_size"), "intermediate_size", least=1),
        vocab_size=integer(text.take("vocab_size"), "vocab_size", least=1),
        layers=layers[:depth],
        mtp_layers=layers[depth:],
        moe=_parse_moe(text) if any(x.feed_forward == "moe" for x in layers) else _no_moe(text),
        sparse=parse_sparse(text, layers),
        vision=None,
        quant=None,
        rms_eps=positive(text.take("rms_norm_eps", default=1e-5), "rms_norm_eps"),
        # An explicit key: one public loader defaults it to false, the Step-5 uploads say true.
        fp32_residual=text.flag("fp32_residual_connection", default=False),
        max_positions=integer(
            text.take("max_position_embeddings", "max_seq_len"), "max_position_embeddings", least=1
        ),
        bos_id=0 if bos is None else integer(bos, "bos_token_id"),
        stop_ids=tuple(sorted(set(eos))),
        image_token_id=None,
        ssmax=ssmax,
    )


def _ids(value: Any, name: str) -> list[int]:
    """Token ids: an integer, a list, or null for none."""
    return [] if value is None else integers(value, name)


MOE_KEYS = ("moe_num_experts", "moe_top_k", "moe_intermediate_size", "share_expert_dim")


def _no_moe(text: Keys) -> None:
    text.ignore(*MOE_KEYS, "n_routed_experts", "num_experts_per_tok", "share_expert_dims")
    text.ignore("use_moe_router_bias", "need_fp32_gate", "norm_expert_weight")
    text.ignore("moe_router_activation", "moe_router_scaling_factor")


def _parse_moe(text: Keys) -> MoeConfig:
    text.only("use_moe_router_bias", True)
    text.only("need_fp32_gate", True)
    text.only("norm_expert_weight", True)
    text.only("moe_router_activation", "sigmoid")
    experts = integer(text.take("moe_num_experts", "n_routed_experts"), "moe_num_experts", least=1)
    topk = integer(text.take("moe_top_k", "num_experts_per_tok"), "moe_top_k", least=1)
    if topk > experts:
        raise ConfigError(f"moe_top_k = {topk} exceeds moe_num_experts = {experts}")
    return MoeConfig(
        experts=experts,
        topk=topk,
        expert_dim=integer(text.take("moe_intermediate_size"), "moe_intermediate_size", least=1),
        shared_dim=integer(
            text.take("share_expert_dim", "share_expert_dims"), "share_expert_dim", least=1
        ),
        routed_scale=positive(text.take("moe_router_scaling_factor"), "moe_router_scaling_factor"),
    )


def parse_quant(quant: Keys | None) -> QuantConfig | None:
    """quantization_config, or the `quantization` object of hf_quant_config.json (architecture
    1.5)."""
    if quant is None:
        return None
    inner = quant.section("quantization")
    keys = inner or quant
    for part in (quant, keys):
        part.one_of("quant_method", QUANT_METHODS)
    keys.one_of("quant_algo", QUANT_ALGOS)
    keys.only("group_size", NVFP4_GROUP)
    method = keys.take("quant_method", default=None) or quant.take("quant_method", default=None)
    if method is None and inner is None:
        raise ConfigError("quantization_config: missing key quant_method")
    block = keys.take("weight_block_size", default=None)
    exclude = [strings(keys.take(name, default=None) or [], name) for name in EXCLUDE_KEYS]
    keys.ignore("fmt", "activation_scheme", "producer", "config_groups", "kv_cache_scheme")
    keys.ignore("kv_cache_quant_algo", "format", "quantization_status", "global_compression_ratio")
    quant.ignore("producer")
    return QuantConfig(
        method=method or "modelopt",
        algo=keys.take("quant_algo", default=None),
        group_size=keys.take("group_size", default=None),
        block_size=None if block is None else _pair(integers(block, "weight_block_size")),
        exclude=tuple(pattern for patterns in exclude for pattern in patterns),
    )


def _pair(values: list[int]) -> tuple[int, int]:
    if len(values) != 2 or 0 in values:
        raise ConfigError(f"weight_block_size = {values} is not two positive integers")
    return values[0], values[1]


def _parse_vision(keys: Keys | None, *, projector_bias: bool) -> VisionConfig | None:
    """vision_config (architecture 1.4): only what names and sizes the tower's tensors."""
    if keys is None:
        return None
    width = integer(keys.take("width"), "vision_config.width", least=1)
    ratio = positive(keys.take("mlp_ratio"), "vision_config.mlp_ratio")
    if not 1 <= width * ratio < 2**63:
        raise ConfigError(f"vision_config.mlp_ratio = {ratio!r} does not fit width = {width}")
    keys.ignore("model_type", "hidden_act", "output_dim", "use_cls_token", "use_abs_posemb")
    keys.ignore("use_rope2d", "use_ln_pre", "use_ln_post", "ls_init_value", "layer_norm_eps")
    keys.ignore("drop_path", "pool_type", "attn_pooler_heads")
    return VisionConfig(
        width=width,
        layers=integer(keys.take("layers"), "vision_config.layers", least=1),
        heads=integer(keys.take("heads"), "vision_config.heads", least=1),
        patch_size=integer(keys.take("patch_size"), "vision_config.patch_size", least=1),
        image_size=integer(keys.take("image_size"), "vision_config.image_size", least=1),
        mlp_dim=round(width * ratio),
        projector_bias=projector_bias,
    )
