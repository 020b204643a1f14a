"""The tensors a model is made of, as frozen dataclasses that torch.export accepts as inputs.

Knows names and grouping only; reading them is checkpoint.py's job, the maths is in layers/.
Keeps true: a weight is a tensor in its checkpoint precision, never rounded. What the
release stores in float32, and the router gate, is float32 here (architecture 2.1).

Legend: H hidden, Q heads x head_dim, KV kv_heads x head_dim, F feed-forward, E experts, V
vocabulary, P proxy_dim, I indexer heads, N query heads, D head_dim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphs.formats import ExpertMatrix


@dataclass(frozen=True, kw_only=True)
class IndexerWeights:
    """Projections of region-sparse attention, used as BF16 whatever their stored dtype."""

    q: Tensor  # [I*P, H]
    k: Tensor  # [P, H]
    z: Tensor  # [P, H]
    w: Tensor  # [I, H]
    q_norm: Tensor  # [P]
    k_norm: Tensor  # [P]
    k_norm_bias: Tensor  # [P]
    ssmax_s: Tensor  # [N]


@dataclass(frozen=True, kw_only=True)
class AttentionWeights:
    q: Tensor  # [Q, H]
    k: Tensor  # [KV, H]
    v: Tensor  # [KV, H]
    g: Tensor  # [N, H]
    o: Tensor  # [H, Q]
    q_norm: Tensor  # [D] f32
    k_norm: Tensor  # [D] f32
    indexer: IndexerWeights | None


@dataclass(frozen=True, kw_only=True)
class DenseWeights:
    gate: Tensor  # [F, H]
    up: Tensor  # [F, H]
    down: Tensor  # [H, F]


@dataclass(frozen=True, kw_only=True)
class MoeWeights:
    router: Tensor  # [E, H] f32
    router_bias: Tensor  # [E] f32
    gate: ExpertMatrix  # E x [F, H]
    up: ExpertMatrix  # E x [F, H]
    down: ExpertMatrix  # E x [H, F]
    shared: DenseWeights


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    input_norm: Tensor  # [H] f32
    post_norm: Tensor  # [H] f32
    attention: AttentionWeights
    feed_forward: DenseWeights | MoeWeights


@dataclass(frozen=True, kw_only=True)
class MtpWeights:
    eh_proj: Tensor  # [H, 2H]
    embed_norm: Tensor  # [H] f32 (enorm)
    hidden_norm: Tensor  # [H] f32 (hnorm)
    layer: LayerWeights
    head_norm: Tensor  # [H] f32
    head: Tensor  # [V, H], this depth's own


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    embed: Tensor  # [V, H]
    norm: Tensor  # [H] f32
    head: Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    mtp: tuple[MtpWeights, ...]


for _kind in (
    IndexerWeights,
    AttentionWeights,
    DenseWeights,
    MoeWeights,
    LayerWeights,
    MtpWeights,
    ModelWeights,
):
    torch.export.register_dataclass(_kind, serialized_type_name=f"fourstep.{_kind.__name__}")
