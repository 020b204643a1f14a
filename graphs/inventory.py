"""Which tensors a model consists of: name, shape and dtype of each, from the config alone.

Knows the release's names per weight class, keyed by the field of graphs.weights they fill, so that
checking and loading read one list. Does not know files, nor the routed experts (layouts.py: several
on-disk forms). Keeps true: the lists are complete, a tensor not in them is not part of the model.
Architecture 2.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from graphs.config import LayerConfig, ModelConfig, VisionConfig

Shape = tuple[int, ...]
MATRIX = ("BF16",)
# Stored F32 by the release. BF16 is widened at load, which is exact and gives engines one dtype.
WIDE = ("F32", "BF16")
VISION = ("BF16", "F32", "F16")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A tensor that has to be there (or may be), with every shape and dtype that is accepted."""

    name: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    required: bool = True

    @property
    def wide(self) -> bool:
        return self.dtypes == WIDE


def matrix(name: str, *shape: int) -> Expected:
    return Expected(name=name, shapes=(shape,), dtypes=MATRIX)


def wide(name: str, *shape: int) -> Expected:
    return Expected(name=name, shapes=(shape,), dtypes=WIDE)


def global_tensors(config: ModelConfig) -> dict[str, Expected]:
    """Fields of ModelWeights that are single tensors."""
    vocab, hidden = config.vocab_size, config.hidden_dim
    return {
        "embed": matrix("model.embed_tokens.weight", vocab, hidden),
        "norm": wide("model.norm.weight", hidden),
        "head": matrix("lm_head.weight", vocab, hidden),
    }


def norm_tensors(config: ModelConfig, layer: LayerConfig) -> dict[str, Expected]:
    """Fields of LayerWeights that are single tensors."""
    prefix = f"model.layers.{layer.index}"
    return {
        "input_norm": wide(f"{prefix}.input_layernorm.weight", config.hidden_dim),
        "post_norm": wide(f"{prefix}.post_attention_layernorm.weight", config.hidden_dim),
    }


def attention_tensors(config: ModelConfig, layer: LayerConfig) -> dict[str, Expected]:
    """Fields of AttentionWeights, without the indexer."""
    prefix = f"model.layers.{layer.index}.self_attn"
    hidden, head_dim = config.hidden_dim, layer.head_dim
    q_dim, kv_dim = layer.heads * head_dim, layer.kv_heads * head_dim
    return {
        "q": matrix(f"{prefix}.q_proj.weight", q_dim, hidden),
        "k": matrix(f"{prefix}.k_proj.weight", kv_dim, hidden),
        "v": matrix(f"{prefix}.v_proj.weight", kv_dim, hidden),
        "g": matrix(f"{prefix}.g_proj.weight", layer.heads, hidden),
        "o": matrix(f"{prefix}.o_proj.weight", hidden, q_dim),
        "q_norm": wide(f"{prefix}.q_norm.weight", head_dim),
        "k_norm": wide(f"{prefix}.k_norm.weight", head_dim),
    }


def indexer_tensors(config: ModelConfig, layer: LayerConfig) -> dict[str, Expected]:
    """Fields of IndexerWeights; empty where the layer has no indexer."""
    sparse = config.sparse
    if sparse is None or layer.attention != "full":
        return {}
    prefix = f"model.layers.{layer.index}.self_attn"
    hidden, proxy = config.hidden_dim, sparse.proxy_dim
    return {
        "q": matrix(f"{prefix}.sparse_indexer_q.weight", sparse.heads * proxy, hidden),
        "k": matrix(f"{prefix}.sparse_indexer_k.weight", proxy, hidden),
        "z": matrix(f"{prefix}.sparse_indexer_z.weight", proxy, hidden),
        "w": wide(f"{prefix}.sparse_indexer_w.weight", sparse.heads, hidden),
        "q_norm": wide(f"{prefix}.sparse_indexer_q_norm.weight", proxy),
        "k_norm": wide(f"{prefix}.sparse_indexer_k_norm.weight", proxy),
        "k_norm_bias": wide(f"{prefix}.sparse_indexer_k_norm.bias", proxy),
        "ssmax_s": wide(f"{prefix}.ssmax_s", layer.heads),
    }


def dense_tensors(config: ModelConfig, layer: LayerConfig) -> dict[str, Expected]:
    """Fields of DenseWeights: the layer's dense MLP, or the shared expert of a MoE layer."""
    shared = config.moe.shared_dim if config.moe and layer.feed_forward == "moe" else None
    prefix = f"model.layers.{layer.index}.{'mlp' if shared is None else 'share_expert'}"
    hidden, inner = config.hidden_dim, config.dense_dim if shared is None else shared
    return {
        "gate": matrix(f"{prefix}.gate_proj.weight", inner, hidden),
        "up": matrix(f"{prefix}.up_proj.weight", inner, hidden),
        "down": matrix(f"{prefix}.down_proj.weight", hidden, inner),
    }


def router_tensors(config: ModelConfig, layer: LayerConfig) -> dict[str, Expected]:
    """Fields of MoeWeights that are single tensors; empty on a dense layer."""
    if config.moe is None or layer.feed_forward != "moe":
        return {}
    prefix, experts = f"model.layers.{layer.index}.moe", config.moe.experts
    return {
        "router": wide(f"{prefix}.gate.weight", experts, config.hidden_dim),
        "router_bias": wide(f"{prefix}.router_bias", experts),
    }


def mtp_tensors(config: ModelConfig, layer: LayerConfig) -> dict[str, Expected]:
    """Fields of MtpWeights that are single tensors. The head is this depth's own, never shared."""
    prefix, hidden = f"model.layers.{layer.index}", config.hidden_dim
    head = f"{prefix}.transformer.shared_head"
    return {
        "eh_proj": matrix(f"{prefix}.eh_proj.weight", hidden, 2 * hidden),
        "embed_norm": wide(f"{prefix}.enorm.weight", hidden),
        "hidden_norm": wide(f"{prefix}.hnorm.weight", hidden),
        "head_norm": wide(f"{head}.norm.weight", hidden),
        "head": matrix(f"{head}.output.weight", config.vocab_size, hidden),
    }


def layer_tensors(config: ModelConfig, layer: LayerConfig) -> Iterator[Expected]:
    """All tensors of a decoder layer but its routed experts."""
    for part in (norm_tensors, attention_tensors, indexer_tensors, router_tensors, dense_tensors):
        yield from part(config, layer).values()


def text_tensors(config: ModelConfig) -> Iterator[Expected]:
    """All text tensors but the routed experts, MTP layers included."""
    yield from global_tensors(config).values()
    for layer in (*config.layers, *config.mtp_layers):
        yield from layer_tensors(config, layer)
    for layer in config.mtp_layers:
        yield from mtp_tensors(config, layer).values()


def vision_tensors(vision: VisionConfig, hidden_dim: int) -> Iterator[Expected]:
    """The vision tower, its two downsamplers and the projector."""
    width, patch = vision.width, vision.patch_size
    table = (vision.image_size // patch) ** 2
    yield _vision("vision_model.conv1.weight", width, 3, patch, patch)
    yield _vision("vision_model.positional_embedding", table, width)
    yield from _affine("vision_model.ln_pre", width)
    for block in range(vision.layers):
        yield from _vision_block(f"vision_model.transformer.resblocks.{block}", vision)
    yield from _affine("vision_model.vit_downsampler1", 2 * width, width, 3, 3)
    yield from _affine("vision_model.vit_downsampler2", 4 * width, 2 * width, 3, 3)
    yield _vision("vit_large_projector.weight", hidden_dim, 4 * width)
    if vision.projector_bias:
        yield _vision("vit_large_projector.bias", hidden_dim)


def _vision_block(prefix: str, vision: VisionConfig) -> Iterator[Expected]:
    width, inner = vision.width, vision.mlp_dim
    yield from _affine(f"{prefix}.ln_1", width)
    yield from _affine(f"{prefix}.ln_2", width)
    yield _vision(f"{prefix}.attn.in_proj_weight", 3 * width, width)
    yield _vision(f"{prefix}.attn.in_proj_bias", 3 * width)
    yield from _affine(f"{prefix}.attn.out_proj", width, width)
    yield from _affine(f"{prefix}.mlp.c_fc", inner, width)
    yield from _affine(f"{prefix}.mlp.c_proj", width, inner)
    yield _vision(f"{prefix}.ls_1.gamma", width)
    yield _vision(f"{prefix}.ls_2.gamma", width)


def _vision(name: str, *shape: int) -> Expected:
    return Expected(name=name, shapes=(shape,), dtypes=VISION)


def _affine(module: str, *shape: int) -> Iterator[Expected]:
    yield _vision(f"{module}.weight", *shape)
    yield _vision(f"{module}.bias", shape[0])
