"""Sizes of step5-nano and the names and shapes of its tensors, as the release spells them.

Knows the architecture's inventory (2.1) for this size; does not know values or files. Keeps true:
`shapes` lists every tensor of the checkpoint before packing, each once.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Dims:
    """Dimensions; the defaults are step5-nano, tests use smaller ones."""

    hidden: int = 192
    layers: int = 8
    mtp_layers: int = 3
    vocabulary: int = 3072
    ff: int = 512
    heads: int = 8
    groups: int = 2
    head_dim: int = 48
    full_layers: tuple[int, ...] = (3, 7)
    window: int = 64
    moe_layers: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    experts: int = 16
    chosen: int = 4
    expert_ff: int = 128
    shared_ff: int = 128
    routed_scale: float = 3.0
    limit: float = 7.0
    theta: float = 1e4
    theta_full: float = 1e7
    proxy: int = 32
    index_heads: int = 4
    index_rope: int = 8
    top_regions: int = 16
    region: int = 8
    eps: float = 1e-5

    @property
    def rotary_full(self) -> int:
        return round(self.head_dim / 3)

    @property
    def all_layers(self) -> range:
        return range(self.layers + self.mtp_layers)

    def is_mtp(self, layer: int) -> bool:
        return layer >= self.layers


Shapes = dict[str, tuple[int, ...]]


def _swiglu(prefix: str, hidden: int, ff: int, experts: tuple[int, ...] = ()) -> Shapes:
    return {
        f"{prefix}.gate_proj.weight": (*experts, ff, hidden),
        f"{prefix}.up_proj.weight": (*experts, ff, hidden),
        f"{prefix}.down_proj.weight": (*experts, hidden, ff),
    }


def layer_shapes(dims: Dims, layer: int) -> Shapes:
    """Tensors of one layer, MTP layers included; ssmax_s is a constant and part of the list."""
    h, n, g, d = dims.hidden, dims.heads, dims.groups, dims.head_dim
    prefix = f"model.layers.{layer}"
    attention = f"{prefix}.self_attn"
    shapes: Shapes = {
        f"{prefix}.input_layernorm.weight": (h,),
        f"{prefix}.post_attention_layernorm.weight": (h,),
        f"{attention}.q_proj.weight": (n * d, h),
        f"{attention}.k_proj.weight": (g * d, h),
        f"{attention}.v_proj.weight": (g * d, h),
        f"{attention}.o_proj.weight": (h, n * d),
        f"{attention}.g_proj.weight": (n, h),
        f"{attention}.q_norm.weight": (d,),
        f"{attention}.k_norm.weight": (d,),
    }
    if layer in dims.full_layers:
        shapes |= {
            f"{attention}.sparse_indexer_q.weight": (dims.index_heads * dims.proxy, h),
            f"{attention}.sparse_indexer_k.weight": (dims.proxy, h),
            f"{attention}.sparse_indexer_z.weight": (dims.proxy, h),
            f"{attention}.sparse_indexer_w.weight": (dims.index_heads, h),
            f"{attention}.sparse_indexer_q_norm.weight": (dims.proxy,),
            f"{attention}.sparse_indexer_k_norm.weight": (dims.proxy,),
            f"{attention}.sparse_indexer_k_norm.bias": (dims.proxy,),
            f"{attention}.ssmax_s": (n,),
        }
    if layer in dims.moe_layers:
        shapes |= {
            f"{prefix}.moe.gate.weight": (dims.experts, h),
            f"{prefix}.moe.router_bias": (dims.experts,),
        }
        shapes |= _swiglu(f"{prefix}.moe", h, dims.expert_ff, (dims.experts,))
        shapes |= _swiglu(f"{prefix}.share_expert", h, dims.shared_ff)
    else:
        shapes |= _swiglu(f"{prefix}.mlp", h, dims.ff)
    if dims.is_mtp(layer):
        shapes |= {
            f"{prefix}.eh_proj.weight": (h, 2 * h),
            f"{prefix}.enorm.weight": (h,),
            f"{prefix}.hnorm.weight": (h,),
            f"{prefix}.transformer.shared_head.norm.weight": (h,),
            f"{prefix}.transformer.shared_head.output.weight": (dims.vocabulary, h),
        }
    return shapes


def shapes(dims: Dims) -> Shapes:
    """Every tensor of the checkpoint, routed experts unpacked."""
    result: Shapes = {
        "model.embed_tokens.weight": (dims.vocabulary, dims.hidden),
        "model.norm.weight": (dims.hidden,),
        "lm_head.weight": (dims.vocabulary, dims.hidden),
    }
    for layer in dims.all_layers:
        result |= layer_shapes(dims, layer)
    return result
