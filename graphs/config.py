"""ModelConfig: what config.json says, once, frozen.

Knows the model's dimensions and the options of every layer. Does not know files, tensors or how the
JSON was spelled (config_json.py does). Keeps true: a ModelConfig that exists can be run; everything
that cannot was refused with the key and its value. Architecture section 1.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

AttentionKind = Literal["sliding", "full"]
FeedForwardKind = Literal["dense", "moe"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """The llama3 frequency rule (architecture 3.4); factor 1 leaves every frequency as it is."""

    factor: float
    original_max_positions: int
    low_freq_factor: float
    high_freq_factor: float


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """One decoder layer, backbone or MTP.

    `window` counts the visible keys including the query's own, None on full layers; `routed_limit`
    and `shared_limit` are the clamp of the routed experts and of the dense or shared MLP, None for
    none.
    """

    index: int
    attention: AttentionKind
    feed_forward: FeedForwardKind
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    rope_theta: float
    rotary_dim: int
    rope_scaling: RopeScaling | None
    routed_limit: float | None
    shared_limit: float | None


@dataclass(frozen=True, kw_only=True)
class SparseConfig:
    """Region-sparse attention of the full layers (architecture 4)."""

    proxy_dim: int
    heads: int
    groups: int
    rope_dim: int
    topk: int
    region: int


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    experts: int
    topk: int
    expert_dim: int
    shared_dim: int
    routed_scale: float


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Dimensions of the vision tower, enough to name its tensors; running it is not done yet."""

    width: int
    layers: int
    heads: int
    patch_size: int
    image_size: int
    mlp_dim: int
    projector_bias: bool


@dataclass(frozen=True, kw_only=True)
class QuantConfig:
    """What the config claims about quantised weights. A claim: the tensors present decide."""

    method: str
    algo: str | None
    group_size: int | None
    block_size: tuple[int, int] | None
    exclude: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A Step-5 model. `layers` are the backbone's, `mtp_layers` follow them in index."""

    hidden_dim: int
    dense_dim: int
    vocab_size: int
    layers: tuple[LayerConfig, ...]
    mtp_layers: tuple[LayerConfig, ...]
    moe: MoeConfig | None
    sparse: SparseConfig | None
    vision: VisionConfig | None
    quant: QuantConfig | None
    rms_eps: float
    fp32_residual: bool
    max_positions: int
    bos_id: int
    stop_ids: tuple[int, ...]
    image_token_id: int | None
    ssmax: bool = False

    @cached_property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of the backbone's full-attention layers."""
        return tuple(layer.index for layer in self.layers if layer.attention == "full")

    @cached_property
    def sliding_layers(self) -> tuple[int, ...]:
        """Indices of all sliding layers, the MTP layers last."""
        all_layers = (*self.layers, *self.mtp_layers)
        return tuple(layer.index for layer in all_layers if layer.attention == "sliding")

    @cached_property
    def digest(self) -> str:
        """sha256 over every field, the identity that engines and artifacts are matched by."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
