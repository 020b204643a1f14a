"""A checkpoint of this family as a GGUF file of arch `step35`: the same dims and the same formats.

Knows llama.cpp's names for this architecture and how its NVFP4 blocks are laid out. What it lacks
is left out: the indexer (its full layers attend to everything) and scale_2 of each expert, which is
multiplied into the block scales. Keeps true: every other value is the checkpoint's own.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from graphs.checkpoint import Checkpoint
from graphs.config import ModelConfig
from graphs.formats import ExpertMatrix, Nvfp4Experts, to_e4m3
from graphs.weights import AttentionWeights, DenseWeights, LayerWeights, ModelWeights, MoeWeights
from tests.bench.peers.gguf_file import BF16, F32, NVFP4, GgufTensor, Value, write_gguf

ARCH = "step35"
SIGMOID = 2
BLOCK = 16  # columns with one scale; four of them make a super-block
NORMAL, CONTROL, UNKNOWN, BYTE = 1, 3, 2, 6  # kinds of vocabulary entries


def write_step35(checkpoint: Checkpoint, path: Path) -> None:
    """Write the whole checkpoint, MTP layers included. Its experts have to be NVFP4."""
    config = checkpoint.config
    metadata = {**model_metadata(config), **vocabulary(config.vocab_size)}
    partial = path.with_suffix(".partial")
    write_gguf(partial, metadata, list(model_tensors(checkpoint.load())))
    partial.rename(path)


def model_metadata(config: ModelConfig) -> dict[str, Value]:
    """The keys that llama.cpp reads for this architecture."""
    moe = config.moe
    assert moe is not None
    layers = (*config.layers, *config.mtp_layers)
    full = next(layer for layer in layers if layer.attention == "full")
    sliding = next(layer for layer in layers if layer.window is not None)
    assert sliding.window is not None
    model: dict[str, Value] = {
        "block_count": len(layers),
        "context_length": min(config.max_positions, 2**31 - 1),
        "embedding_length": config.hidden_dim,
        "feed_forward_length": config.dense_dim,
        "attention.head_count": [layer.heads for layer in layers],
        "attention.head_count_kv": [layer.kv_heads for layer in layers],
        "attention.key_length": full.head_dim,
        "attention.value_length": full.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_eps,
        "attention.sliding_window": sliding.window,
        "attention.sliding_window_pattern": [layer.attention == "sliding" for layer in layers],
        "rope.freq_base": full.rope_theta,
        "rope.freq_base_swa": sliding.rope_theta,
        # The loader halves the count of the full layers, as this model's relatives need it.
        "rope.dimension_count": 2 * full.rotary_dim,
        "rope.dimension_count_swa": sliding.rotary_dim,
        "expert_count": moe.experts,
        "expert_used_count": moe.topk,
        "expert_feed_forward_length": moe.expert_dim,
        "expert_shared_feed_forward_length": moe.shared_dim,
        "expert_weights_scale": moe.routed_scale,
        "expert_weights_norm": True,
        "expert_gating_func": SIGMOID,
        "leading_dense_block_count": min(
            layer.index for layer in layers if layer.feed_forward == "moe"
        ),
        "swiglu_clamp_exp": [layer.routed_limit or 0.0 for layer in layers],
        "swiglu_clamp_shexp": [layer.shared_limit or 0.0 for layer in layers],
        "nextn_predict_layers": len(config.mtp_layers),
    }
    general: dict[str, Value] = {"general.architecture": ARCH, "general.name": "synthetic step"}
    return general | {f"{ARCH}.{key}": value for key, value in model.items()}


def vocabulary(size: int) -> dict[str, Value]:
    """A vocabulary of numbered words, since the program wants one; requests carry token ids."""
    special = ["<unk>", "<s>", "</s>"]
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [f"w{n}" for n in range(size)]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * size]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*special, *single, *words][:size],
        "tokenizer.ggml.scores": [-float(n) for n in range(size)],
        "tokenizer.ggml.token_type": kinds[:size],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def model_tensors(weights: ModelWeights) -> Iterator[GgufTensor]:
    """All tensors, in file order."""
    yield matrix("token_embd.weight", weights.embed)
    yield norm("output_norm.weight", weights.norm)
    yield matrix("output.weight", weights.head)
    for index, layer in enumerate(weights.layers):
        yield from layer_tensors(f"blk.{index}", layer)
    for depth, mtp in enumerate(weights.mtp):
        prefix = f"blk.{len(weights.layers) + depth}"
        yield from layer_tensors(prefix, mtp.layer)
        yield matrix(f"{prefix}.nextn.eh_proj.weight", mtp.eh_proj)
        yield norm(f"{prefix}.nextn.enorm.weight", mtp.embed_norm)
        yield norm(f"{prefix}.nextn.hnorm.weight", mtp.hidden_norm)
        yield norm(f"{prefix}.nextn.shared_head_norm.weight", mtp.head_norm)
        yield matrix(f"{prefix}.nextn.shared_head_head.weight", mtp.head)


def layer_tensors(prefix: str, layer: LayerWeights) -> Iterator[GgufTensor]:
    yield norm(f"{prefix}.attn_norm.weight", layer.input_norm)
    yield from attention_tensors(prefix, layer.attention)
    yield norm(f"{prefix}.ffn_norm.weight", layer.post_norm)
    ffn = layer.feed_forward
    if isinstance(ffn, DenseWeights):
        yield from mlp_tensors(prefix, "", ffn)
    else:
        yield from moe_tensors(prefix, ffn)


def attention_tensors(prefix: str, weights: AttentionWeights) -> Iterator[GgufTensor]:
    yield matrix(f"{prefix}.attn_q.weight", weights.q)
    yield matrix(f"{prefix}.attn_k.weight", weights.k)
    yield matrix(f"{prefix}.attn_v.weight", weights.v)
    yield matrix(f"{prefix}.attn_gate.weight", weights.g)
    yield matrix(f"{prefix}.attn_output.weight", weights.o)
    yield norm(f"{prefix}.attn_q_norm.weight", weights.q_norm)
    yield norm(f"{prefix}.attn_k_norm.weight", weights.k_norm)


def mlp_tensors(prefix: str, suffix: str, weights: DenseWeights) -> Iterator[GgufTensor]:
    yield matrix(f"{prefix}.ffn_gate{suffix}.weight", weights.gate)
    yield matrix(f"{prefix}.ffn_up{suffix}.weight", weights.up)
    yield matrix(f"{prefix}.ffn_down{suffix}.weight", weights.down)


def moe_tensors(prefix: str, weights: MoeWeights) -> Iterator[GgufTensor]:
    yield matrix(f"{prefix}.ffn_gate_inp.weight", weights.router)
    yield matrix(f"{prefix}.exp_probs_b.bias", weights.router_bias)
    for name in ("gate", "up", "down"):
        stack = getattr(weights, name)
        yield experts(f"{prefix}.ffn_{name}_exps.weight", stack)
    yield from mlp_tensors(prefix, "_shexp", weights.shared)


def matrix(name: str, weight: Tensor) -> GgufTensor:
    kind = {torch.float32: F32, torch.bfloat16: BF16}[weight.dtype]
    return GgufTensor(name=name, kind=kind, shape=tuple(weight.shape), data=lambda: weight)


def norm(name: str, weight: Tensor) -> GgufTensor:
    """The file holds the factor itself, the checkpoint the factor less one."""
    return GgufTensor(name=name, kind=F32, shape=tuple(weight.shape), data=lambda: weight + 1)


def experts(name: str, stack: ExpertMatrix) -> GgufTensor:
    if not isinstance(stack, Nvfp4Experts):
        raise ValueError(f"{name}: experts are {type(stack).__name__}, only NVFP4 is written")
    shape = (stack.experts, stack.out_dim, stack.in_dim)
    return GgufTensor(name=name, kind=NVFP4, shape=shape, data=lambda: pack_nvfp4(stack))


def pack_nvfp4(stack: Nvfp4Experts) -> Tensor:
    """u8 [E, O, I/64, 36]: four scales, then 32 bytes, each of whose halves belong to columns n and
    n+8 of a block. Raises ValueError where the product of the two scales is not an e4m3 value."""
    wide = stack.scale.float() * stack.scale_2[:, None, None]
    scale_EOB = to_e4m3(wide)
    if not torch.equal(scale_EOB.float(), wide):
        raise ValueError("scale * scale_2 is not an e4m3 value; the file would hold other weights")
    codes = stack.weight.unflatten(-1, (-1, BLOCK // 2))
    values = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    packed = values[..., : BLOCK // 2] | (values[..., BLOCK // 2 :] << 4)
    scales = scale_EOB.view(torch.uint8).unflatten(-1, (-1, 4))
    return torch.cat([scales, packed.unflatten(-2, (-1, 4)).flatten(-2)], dim=-1)
