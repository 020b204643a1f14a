"""GPUs by name and memory, and what a model needs of them: which TP sizes split it, what fits.

Knows memory sizes, the state's cost and the divisibility rules of tensor parallelism. Does not know
the machine it runs on. Keeps true: a TP size that is not refused cuts no head, group or scale
block. Architecture 3.10 (state), 4.3 (groups).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from graphs.config import LayerConfig, ModelConfig
from graphs.errors import ConfigError
from graphs.footprint import footprint
from graphs.layouts import Layout
from graphs.plan import MAX_WIDTH, EnginePlan
from graphs.state import BLOCK

TP_SIZES = (1, 2, 4, 8)
# Kept free for the driver's context, workspaces, captured graphs and activations.
RESERVE = 0.08


@dataclass(frozen=True, kw_only=True)
class Sku:
    """A GPU model. `memory` in bytes is the nominal decimal size, no more than drivers report."""

    name: str
    memory: int


def _gb(name: str, gigabytes: int) -> Sku:
    return Sku(name=name, memory=gigabytes * 10**9)


SKUS = (
    _gb("L40S", 48),
    _gb("A100 80GB", 80),
    _gb("H100 80GB", 80),
    _gb("RTX PRO 6000", 96),
    _gb("H200", 141),
    _gb("B200 180GB", 180),
    _gb("B200 192GB", 192),
    _gb("B300", 288),
)


@dataclass(frozen=True, kw_only=True)
class StateCost:
    """Bytes of state on one rank for one sequence: for each block of its text, and beside those,
    scratch included. graphs.footprint counts more sequences."""

    per_block: int
    per_sequence: int

    def tokens(self, room: int) -> int:
        """The context of the one sequence that `room` bytes hold; 0 where they hold none."""
        blocks = (room - self.per_sequence) // self.per_block
        return max(0, blocks * BLOCK - MAX_WIDTH)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One SKU at one TP size. `kv_tokens` is the context room of one sequence, 0: does not fit."""

    sku: str
    tp: int
    memory: int
    weights: int
    kv_tokens: int


def state_cost(config: ModelConfig, tp: int = 1) -> StateCost:
    """Full layers grow with the context, sliding and MTP layers hold a circle of blocks a sequence.

    Region summaries serve all groups, so every rank holds them whole.
    """
    share = dataclasses.replace(
        config,
        layers=tuple(_share(layer, tp) for layer in config.layers),
        mtp_layers=tuple(_share(layer, tp) for layer in config.mtp_layers),
    )

    # Longer than any circle, so that sliding layers have all they will ever have.
    windows = [layer.window or 0 for layer in (*config.layers, *config.mtp_layers)]
    blocks = max(windows) + EnginePlan().prefill[-1]
    less, more = (
        footprint(share, context=count * BLOCK - MAX_WIDTH).state for count in (blocks, blocks + 1)
    )
    return StateCost(per_block=more - less, per_sequence=less - blocks * (more - less))


def _share(layer: LayerConfig, tp: int) -> LayerConfig:
    """A rank's part of a layer's keys and values."""
    return dataclasses.replace(layer, kv_heads=layer.kv_heads // tp)


def tp_obstacles(config: ModelConfig, layouts: Mapping[str, Layout], tp: int) -> tuple[str, ...]:
    """Why the model cannot be split over `tp` ranks; empty when it can."""
    if tp == 1:
        return ()
    widths = {("dense MLP width", config.dense_dim), ("vocabulary", config.vocab_size)}
    for layer in (*config.layers, *config.mtp_layers):
        widths |= {("query heads", layer.heads), ("KV groups", layer.kv_heads)}
    if config.sparse is not None:
        widths.add(("indexer groups", config.sparse.groups))
    if config.moe is not None:
        widths.add(("shared expert width", config.moe.shared_dim))
        widths.add(("expert width", config.moe.expert_dim))
    found = [f"{size} {what}" for what, size in sorted(widths) if size % tp]
    return (*found, *_block_obstacles(config, layouts, tp))


def _block_obstacles(config: ModelConfig, layouts: Mapping[str, Layout], tp: int) -> list[str]:
    """Scale blocks that a rank's slice of the expert width would cut."""
    if config.moe is None or config.moe.expert_dim % tp:
        return []
    share = config.moe.expert_dim // tp
    units = {(x.label, x.width_unit(m.rpartition(".")[2])) for m, x in layouts.items()}
    return [
        f"expert width {share} a rank in blocks of {unit} ({label})"
        for label, unit in sorted(units)
        if share % unit
    ]


def allowed_tp(config: ModelConfig, layouts: Mapping[str, Layout]) -> tuple[int, ...]:
    return tuple(tp for tp in TP_SIZES if not tp_obstacles(config, layouts, tp))


def check_tp(config: ModelConfig, layouts: Mapping[str, Layout], tp: int) -> None:
    """Raises ConfigError with the reasons and the sizes that are possible."""
    allowed = allowed_tp(config, layouts)
    if tp in allowed:
        return
    reasons = ", ".join(tp_obstacles(config, layouts, tp)) or f"only {TP_SIZES} are built"
    raise ConfigError(f"TP {tp} does not split this model ({reasons}); allowed: {allowed}")


def fit(sku: Sku, tp: int, *, weights: int, cost: StateCost) -> Fit:
    """What is left beside `weights` bytes a rank, as tokens of one sequence's context."""
    room = int(sku.memory * (1 - RESERVE)) - weights
    return Fit(sku=sku.name, tp=tp, memory=sku.memory, weights=weights, kv_tokens=cost.tokens(room))
