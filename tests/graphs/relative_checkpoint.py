"""A tiny random checkpoint of the dense relative, for the one public program that runs its body.

Knows names and shapes (architecture 2.1), written out here. Keeps true: every layer kind is in it
(dense and MoE feed-forward, sliding attention with more heads, full attention with scaled, partial
rope), one layer of each feed-forward kind is clamped, and the weights are large enough that a wrong
clamp, mask or angle shows in the logits.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

FULL, SLIDING = "full_attention", "sliding_attention"
KINDS = (FULL, SLIDING, SLIDING, FULL, SLIDING, FULL)
DENSE = (0, 1)
HEADS = {FULL: 4, SLIDING: 6}
HIDDEN, GROUPS, HEAD_DIM, VOCAB = 32, 2, 16, 64
DENSE_DIM, EXPERTS, EXPERT_DIM, SHARED_DIM = 48, 8, 24, 40
WINDOW = 8


def config() -> dict[str, Any]:
    """config.json, nested: the section names of the relative's own upload."""
    depth = range(len(KINDS))
    return {
        "model_type": "step3p7",
        "text_config": {
            "model_type": "step3p5",
            "hidden_size": HIDDEN,
            "intermediate_size": DENSE_DIM,
            "vocab_size": VOCAB,
            "num_hidden_layers": len(KINDS),
            "num_attention_heads": HEADS[FULL],
            "num_attention_groups": GROUPS,
            "head_dim": HEAD_DIM,
            "layer_types": list(KINDS),
            "attention_other_setting": {
                "attention_type": SLIDING,
                "num_attention_heads": HEADS[SLIDING],
                "num_attention_groups": GROUPS,
                "head_dim": HEAD_DIM,
            },
            "sliding_window": WINDOW,
            "rope_theta": [5e6 if kind == FULL else 1e4 for kind in KINDS],
            "partial_rotary_factors": [0.5 if kind == FULL else 1.0 for kind in KINDS],
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "low_freq_factor": 1.0,
                "high_freq_factor": 32.0,
            },
            "yarn_only_types": [FULL],
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
            "moe_num_experts": EXPERTS,
            "moe_top_k": 3,
            "moe_intermediate_size": EXPERT_DIM,
            "share_expert_dim": SHARED_DIM,
            "moe_router_scaling_factor": 3.0,
            "moe_layers_enum": ",".join(str(i) for i in depth if i not in DENSE),
            "swiglu_limits": [1.0 if i == 4 else 0.0 for i in depth],
            "swiglu_limits_shared": [{1: 1.5, 4: 2.0}.get(i, 0.0) for i in depth],
            "num_nextn_predict_layers": 0,
            "bos_token_id": 0,
            "eos_token_id": [1, 2],
        },
        "vision_config": {  # not compared; the other program cannot be built without one
            "width": 8,
            "layers": 1,
            "heads": 1,
            "patch_size": 14,
            "image_size": 28,
            "mlp_ratio": 2.0,
        },
    }


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)
    for index, kind in enumerate(KINDS):
        prefix, heads = f"model.layers.{index}", HEADS[kind]
        yield f"{prefix}.input_layernorm.weight", (HIDDEN,)
        yield f"{prefix}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{prefix}.self_attn.q_proj.weight", (heads * HEAD_DIM, HIDDEN)
        yield f"{prefix}.self_attn.k_proj.weight", (GROUPS * HEAD_DIM, HIDDEN)
        yield f"{prefix}.self_attn.v_proj.weight", (GROUPS * HEAD_DIM, HIDDEN)
        yield f"{prefix}.self_attn.o_proj.weight", (HIDDEN, heads * HEAD_DIM)
        yield f"{prefix}.self_attn.g_proj.weight", (heads, HIDDEN)
        yield f"{prefix}.self_attn.q_norm.weight", (HEAD_DIM,)
        yield f"{prefix}.self_attn.k_norm.weight", (HEAD_DIM,)
        if index in DENSE:
            yield from mlp(f"{prefix}.mlp", DENSE_DIM)
            continue
        yield f"{prefix}.moe.gate.weight", (EXPERTS, HIDDEN)
        yield f"{prefix}.moe.router_bias", (EXPERTS,)
        yield from mlp(f"{prefix}.moe", EXPERT_DIM, EXPERTS)
        yield from mlp(f"{prefix}.share_expert", SHARED_DIM)


def mlp(prefix: str, width: int, *stack: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}.gate_proj.weight", (*stack, width, HIDDEN)
    yield f"{prefix}.up_proj.weight", (*stack, width, HIDDEN)
    yield f"{prefix}.down_proj.weight", (*stack, HIDDEN, width)


def tensors() -> dict[str, Tensor]:
    """Matrices in bf16 with outputs of about 1.5 for inputs of 1, vectors in float32."""
    random = torch.Generator().manual_seed(20)

    def draw(shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, generator=random)
        if len(shape) == 1:
            return 0.3 * values
        return (1.5 * values * shape[-1] ** -0.5).bfloat16()

    return {name: draw(shape) for name, shape in shapes()}


def write(folder: Path) -> Path:
    weights, file = tensors(), "model.safetensors"
    save_file(weights, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, file)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config()))
    return folder
