"""Writes the checkpoint folder in the release's layout.

Knows files, index and JSON spellings (architecture 1, 2); does not know how values were trained.
Keeps true: every tensor of dims.shapes is written exactly once, layer N in model-layer-NNN, the
rest and the MTP layers in model-extra-000 and model-extra-001 (the last MTP layer).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from models.recipe.dims import Dims, shapes
from models.recipe.quantise import stored_tensors

LONGEST_CONTEXT = 1048576
PRODUCER = {"name": "modelopt", "version": "0.47.0"}  # whose format this is; made by models.recipe


def shard_of(name: str, dims: Dims) -> str:
    """The file that holds tensor `name`."""
    if name.startswith("model.layers."):
        layer = int(name.split(".")[2])
        if layer < dims.layers:
            return f"model-layer-{layer:03d}.safetensors"
        if layer == dims.layers + dims.mtp_layers - 1:
            return "model-extra-001.safetensors"
    return "model-extra-000.safetensors"


def ignored_modules(dims: Dims) -> list[str]:
    """Wildcards of what is not NVFP4."""
    mtp = [f"model.layers.{n}*" for n in dims.all_layers if dims.is_mtp(n)]
    inner = ["*self_attn*", "*share_expert*", "*mlp.*", "*moe.gate"]
    return ["lm_head", "model.embed_tokens", *inner, *mtp]


def sparse_json(dims: Dims) -> dict[str, Any]:
    return {
        "enabled": True,
        "proxy_dim": dims.proxy,
        "sparse_indexer_rope_dim": dims.index_rope,
        "sparse_indexer_use_rope": True,
        "sparse_indexer_num_heads": dims.index_heads,
        "sparse_indexer_num_k_heads": 1,
        "sparse_indexer_q_norm_type": "rmsnorm",
        "sparse_indexer_k_norm_type": "layernorm",
        "sparse_indexer_csa_z_norm_type": "none",
        "sparse_indexer_softmax_variant": "ssmax",
        "sparse_indexer_ssmax_s_granularity": "q_head",
        "num_provider_groups": dims.groups,
        "topk": dims.top_regions,
        "region_block_size": dims.region,
        "compression_method": "csa_block_compress",
        "attention_impl": "sparse_gqa",
        "apply_to_layer_types": ["full_attention"],
    }


def text_json(dims: Dims) -> dict[str, Any]:
    """The text_config section."""
    layers = dims.all_layers
    full = [layer in dims.full_layers for layer in layers]
    limits = [dims.limit for _ in layers]
    return {
        "model_type": "step5",
        "architectures": ["Step5ForCausalLM"],
        "hidden_size": dims.hidden,
        "intermediate_size": dims.ff,
        "num_hidden_layers": dims.layers,
        "vocab_size": dims.vocabulary,
        "num_attention_heads": dims.heads,
        "num_attention_groups": dims.groups,
        "head_dim": dims.head_dim,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": dims.heads,
            "num_attention_groups": dims.groups,
            "head_dim": dims.head_dim,
            "true_head_dim": dims.head_dim,
        },
        "att_impl_type": "GQA",
        "use_head_wise_attn_gate": True,
        "layer_types": ["full_attention" if f else "sliding_attention" for f in full],
        "sliding_window": dims.window,
        "rope_theta": [dims.theta_full if f else dims.theta for f in full],
        "partial_rotary_factors": [1 / 3 if f else 1.0 for f in full],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 1.0,
            "original_max_position_embeddings": LONGEST_CONTEXT,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
        "yarn_only_types": ["full_attention"],
        "max_seq_len": LONGEST_CONTEXT,
        "max_position_embeddings": LONGEST_CONTEXT,
        "rms_norm_eps": dims.eps,
        "norm_dtype": "float32",
        "zero_centered": True,
        "fp32_residual_connection": True,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "use_moe": True,
        "moe_num_experts": dims.experts,
        "moe_top_k": dims.chosen,
        "num_experts_per_tok": dims.chosen,
        "moe_intermediate_size": dims.expert_ff,
        "share_expert_dim": dims.shared_ff,
        "moe_layers_enum": ",".join(map(str, dims.moe_layers)),
        "moe_layer_list": list(dims.moe_layers),
        "use_moe_router_bias": True,
        "need_fp32_gate": True,
        "norm_expert_weight": True,
        "moe_router_scaling_factor": dims.routed_scale,
        "moe_router_activation": "sigmoid",
        "swiglu_limits": limits,
        "swiglu_limits_shared": limits,
        "num_nextn_predict_layers": dims.mtp_layers,
        "bos_token_id": 0,
        "eos_token_id": [1, 2],
        "sparse_config": sparse_json(dims),
    }


def config_json(dims: Dims, tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json; no vision_config, for there is no vision tower."""
    four_bits = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    return {
        "model_type": "step5",
        "architectures": ["Step5ForCausalLM"],
        "torch_dtype": "bfloat16",
        "image_token_id": tokenizer.token_to_id("<im_patch>"),
        "im_start_token": "<im_start>",
        "im_end_token": "<im_end>",
        "im_patch_token": "<im_patch>",
        "text_config": text_json(dims),
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "producer": PRODUCER,
            "group_size": 16,
            "kv_cache_scheme": None,
            "config_groups": {
                "group_0": {
                    "input_activations": four_bits,
                    "weights": four_bits,
                    "targets": ["Linear"],
                }
            },
            "ignore": ignored_modules(dims),
        },
    }


def _json_files(dims: Dims, tokenizer: Tokenizer) -> dict[str, Any]:
    quantization = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": ignored_modules(dims),
    }
    stops = [1, 2, tokenizer.token_to_id("<|im_end|>")]
    return {
        "config.json": config_json(dims, tokenizer),
        "hf_quant_config.json": {"producer": PRODUCER, "quantization": quantization},
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": stops, "pad_token_id": 1},
    }


def export(
    parameters: Mapping[str, Tensor], dims: Dims, tokenizer_folder: Path, out: Path
) -> dict[str, int]:
    """Write the checkpoint into `out`; returns {"tensors": ..., "bytes": ...} of the shards.

    Raises ValueError when `parameters` are not exactly the tensors of `dims`.
    """
    expected = shapes(dims)
    wrong = sorted(
        name
        for name in expected.keys() | parameters.keys()
        if name not in parameters or tuple(parameters[name].shape) != expected.get(name)
    )
    if wrong:
        raise ValueError(f"tensors missing, unexpected or of another shape: {wrong}")
    out.mkdir(parents=True, exist_ok=True)
    shards: dict[str, dict[str, Tensor]] = {}
    for name in expected:
        shards.setdefault(shard_of(name, dims), {}).update(stored_tensors(name, parameters[name]))
    for file, tensors in shards.items():
        save_file(tensors, out / file, metadata={"format": "pt"})
    total = sum(t.nbytes for tensors in shards.values() for t in tensors.values())
    weight_map = {name: file for file, tensors in sorted(shards.items()) for name in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    for file, content in _json_files(dims, tokenizer).items():
        (out / file).write_text(json.dumps(content, indent=1) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (out / file).write_bytes((tokenizer_folder / file).read_bytes())
    return {"tensors": len(weight_map), "bytes": total}
