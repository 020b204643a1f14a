"""The full-size release as sparse files: real names, shapes and sizes, zeros that take no disk.

Knows the inventory by itself (architecture 2.1, 2.3, 2.5), written out here and not taken from
graphs.inventory, so that one checks the other. Keeps true: the apparent sizes are the release's.

    python -m tests.graphs.sparse_checkpoint FOLDER [bf16|nvfp4]
"""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Experts = Literal["bf16", "nvfp4"]
ITEM = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}
LAYERS, MTP = 92, 3
MOE = range(3, 91)
FULL = range(3, 92, 4)
BF16_MOE = range(88, 91)  # left unquantised: with them the sizes add up to the release's 394.2 GB
HIDDEN, HEAD_DIM, VOCAB, DENSE, EXPERTS, INNER = 4096, 192, 128896, 13824, 352, 1536


class Spec(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]


def bf16(name: str, *shape: int) -> Spec:
    return Spec(name, "BF16", shape)


def f32(name: str, *shape: int) -> Spec:
    return Spec(name, "F32", shape)


def decoder(index: int) -> Iterator[Spec]:
    """Norms and attention, as in every layer."""
    prefix = f"model.layers.{index}"
    yield f32(f"{prefix}.input_layernorm.weight", HIDDEN)
    yield f32(f"{prefix}.post_attention_layernorm.weight", HIDDEN)
    prefix += ".self_attn"
    yield bf16(f"{prefix}.q_proj.weight", 12288, HIDDEN)
    yield bf16(f"{prefix}.k_proj.weight", 768, HIDDEN)
    yield bf16(f"{prefix}.v_proj.weight", 768, HIDDEN)
    yield bf16(f"{prefix}.o_proj.weight", HIDDEN, 12288)
    yield bf16(f"{prefix}.g_proj.weight", 64, HIDDEN)
    yield f32(f"{prefix}.q_norm.weight", HEAD_DIM)
    yield f32(f"{prefix}.k_norm.weight", HEAD_DIM)


def indexer(index: int) -> Iterator[Spec]:
    prefix = f"model.layers.{index}.self_attn"
    yield bf16(f"{prefix}.sparse_indexer_q.weight", 4096, HIDDEN)
    yield bf16(f"{prefix}.sparse_indexer_k.weight", 256, HIDDEN)
    yield bf16(f"{prefix}.sparse_indexer_z.weight", 256, HIDDEN)
    yield f32(f"{prefix}.sparse_indexer_w.weight", 16, HIDDEN)
    yield f32(f"{prefix}.sparse_indexer_q_norm.weight", 256)
    yield f32(f"{prefix}.sparse_indexer_k_norm.weight", 256)
    yield f32(f"{prefix}.sparse_indexer_k_norm.bias", 256)
    yield f32(f"{prefix}.ssmax_s", 64)


def mlp(prefix: str, width: int) -> Iterator[Spec]:
    yield bf16(f"{prefix}.gate_proj.weight", width, HIDDEN)
    yield bf16(f"{prefix}.up_proj.weight", width, HIDDEN)
    yield bf16(f"{prefix}.down_proj.weight", HIDDEN, width)


def moe(index: int, experts: Experts) -> Iterator[Spec]:
    prefix = f"model.layers.{index}.moe"
    yield bf16(f"{prefix}.gate.weight", EXPERTS, HIDDEN)
    yield f32(f"{prefix}.router_bias", EXPERTS)
    shapes = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
    for projection, (rows, columns) in shapes.items():
        stem = f"{prefix}.{projection}_proj"
        if experts == "bf16" or index in BF16_MOE:
            yield bf16(f"{stem}.weight", EXPERTS, rows, columns)
            continue
        yield Spec(f"{stem}.weight", "U8", (EXPERTS, rows, columns // 2))
        yield Spec(f"{stem}.weight_scale", "F8_E4M3", (EXPERTS, rows, columns // 16))
        yield f32(f"{stem}.weight_scale_2", EXPERTS)
        yield f32(f"{stem}.input_scale", EXPERTS)
    yield from mlp(f"model.layers.{index}.share_expert", INNER)


def backbone_layer(index: int, experts: Experts) -> Iterator[Spec]:
    yield from decoder(index)
    if index in FULL:
        yield from indexer(index)
    if index in MOE:
        yield from moe(index, experts)
    else:
        yield from mlp(f"model.layers.{index}.mlp", DENSE)


def mtp_layer(index: int) -> Iterator[Spec]:
    prefix = f"model.layers.{index}"
    yield from decoder(index)
    yield from mlp(f"{prefix}.mlp", DENSE)
    yield bf16(f"{prefix}.eh_proj.weight", HIDDEN, 2 * HIDDEN)
    yield f32(f"{prefix}.enorm.weight", HIDDEN)
    yield f32(f"{prefix}.hnorm.weight", HIDDEN)
    yield f32(f"{prefix}.transformer.shared_head.norm.weight", HIDDEN)
    yield bf16(f"{prefix}.transformer.shared_head.output.weight", VOCAB, HIDDEN)


def vision() -> Iterator[Spec]:
    def affine(module: str, *shape: int) -> Iterator[Spec]:
        yield bf16(f"vision_model.{module}.weight", *shape)
        yield bf16(f"vision_model.{module}.bias", shape[0])

    yield bf16("vision_model.conv1.weight", 1536, 3, 14, 14)
    yield bf16("vision_model.positional_embedding", 2704, 1536)
    yield from affine("ln_pre", 1536)
    for block in range(47):
        stem = f"transformer.resblocks.{block}"
        yield from affine(f"{stem}.ln_1", 1536)
        yield from affine(f"{stem}.ln_2", 1536)
        yield bf16(f"vision_model.{stem}.attn.in_proj_weight", 4608, 1536)
        yield bf16(f"vision_model.{stem}.attn.in_proj_bias", 4608)
        yield from affine(f"{stem}.attn.out_proj", 1536, 1536)
        yield from affine(f"{stem}.mlp.c_fc", 8960, 1536)
        yield from affine(f"{stem}.mlp.c_proj", 1536, 8960)
        yield bf16(f"vision_model.{stem}.ls_1.gamma", 1536)
        yield bf16(f"vision_model.{stem}.ls_2.gamma", 1536)
    yield from affine("vit_downsampler1", 3072, 1536, 3, 3)
    yield from affine("vit_downsampler2", 6144, 3072, 3, 3)
    yield bf16("vit_large_projector.weight", 4096, 6144)


def shards(experts: Experts) -> Iterator[tuple[str, list[Spec]]]:
    """(file name, tensors) in the NVFP4 release's sharding."""
    for index in range(LAYERS):
        yield f"model-layer-{index:03}", list(backbone_layer(index, experts))
    top = [
        bf16("model.embed_tokens.weight", VOCAB, HIDDEN),
        bf16("lm_head.weight", VOCAB, HIDDEN),
        f32("model.norm.weight", HIDDEN),
    ]
    yield "model-extra-000", [*top, *mtp_layer(92), *mtp_layer(93)]
    yield "model-extra-001", list(mtp_layer(94))
    yield "model-vit-000", list(vision())


def config(experts: Experts) -> dict[str, object]:
    every, full = LAYERS + MTP, set(FULL)
    text = {
        "model_type": "step5",
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "num_attention_heads": 64,
        "num_attention_groups": 4,
        "head_dim": HEAD_DIM,
        "att_impl_type": "GQA",
        "use_head_wise_attn_gate": True,
        "layer_types": [
            "full_attention" if i in full else "sliding_attention" for i in range(every)
        ],
        "sliding_window": 512,
        "rope_theta": [1e7 if i in full else 1e4 for i in range(every)],
        "partial_rotary_factors": [1 / 3 if i in full else 1.0 for i in range(every)],
        "max_position_embeddings": 1048576,
        "rms_norm_eps": 1e-5,
        "zero_centered": True,
        "fp32_residual_connection": True,
        "use_moe": True,
        "moe_num_experts": EXPERTS,
        "moe_top_k": 8,
        "moe_intermediate_size": INNER,
        "share_expert_dim": INNER,
        "moe_layer_list": list(MOE),
        "moe_router_scaling_factor": 3.0,
        "swiglu_limits": [7.0] * every,
        "swiglu_limits_shared": [7.0] * every,
        "num_nextn_predict_layers": MTP,
        "bos_token_id": 0,
        "eos_token_id": [1, 2],
        "sparse_config": {
            "enabled": True,
            "proxy_dim": 256,
            "sparse_indexer_num_heads": 16,
            "sparse_indexer_num_k_heads": 1,
            "sparse_indexer_rope_dim": 32,
            "num_provider_groups": 4,
            "topk": 512,
            "region_block_size": 8,
        },
    }
    vision_config = {
        "model_type": "perception_encoder",
        "width": 1536,
        "layers": 47,
        "heads": 16,
        "patch_size": 14,
        "image_size": 728,
        "mlp_ratio": 8960 / 1536,
    }
    whole: dict[str, object] = {
        "model_type": "step5_vl",
        "text_config": text,
        "vision_config": vision_config,
    }
    if experts == "nvfp4":
        names = ["*self_attn*", "*share_expert*", "*mlp*", "*moe.gate", "lm_head"]
        names += [f"*layers.{index}.moe.*" for index in BF16_MOE]
        mtp = [f"*layers.{index}.*" for index in range(LAYERS, every)]
        whole["quantization_config"] = {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "group_size": 16,
            "ignore": [*names, "model.embed_tokens", *mtp, "vision_model*", "vit_large*"],
        }
    return whole


def write(folder: Path, experts: Experts) -> int:
    """Write the checkpoint; returns its apparent tensor bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    total = 0
    for stem, specs in shards(experts):
        file = f"{stem}.safetensors"
        total += _write_shard(folder / file, specs)
        weight_map |= {spec.name: file for spec in specs}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config(experts)))
    return total


def _write_shard(path: Path, specs: list[Spec]) -> int:
    header, at = {}, 0
    for name, dtype, shape in sorted(specs, key=lambda spec: -ITEM[spec.dtype]):
        end = at + math.prod(shape) * ITEM[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return at


if __name__ == "__main__":
    kind: Experts = "bf16" if sys.argv[2:] == ["bf16"] else "nvfp4"
    sys.stdout.write(f"{write(Path(sys.argv[1]), kind)} bytes\n")
