"""Bytes that a decode step cannot avoid reading, by kind of layer: what speed is measured against.

Knows which tensors a step touches and how much of the caches its rows see. Does not know time, nor
how an engine goes about it: what several rows share counts once, and so does a tensor that a kernel
walks twice. Keeps true: weights count with the bytes they have in memory, routed experts only as
far as they are chosen, and the indexer's scoring only where regions have to be chosen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphs.config import LayerConfig, ModelConfig, SparseConfig
from graphs.formats import ExpertMatrix
from graphs.trees import nbytes_of
from graphs.weights import IndexerWeights, LayerWeights, ModelWeights, MoeWeights

CACHE_ITEM = 2  # bf16 keys, values and ring rows
SUMMARY_ITEM = 1  # e4m3
EMBED, HEAD, MTP = "embedding", "head", "MTP layers"


@dataclass(frozen=True, kw_only=True)
class Load:
    """One decode step: `positions` of each slot's first row, `width` rows a slot, and how many
    `depths` of the MTP chain follow."""

    width: int
    positions: tuple[int, ...]
    depths: int = 0

    @property
    def rows(self) -> int:
        return self.width * len(self.positions)


@dataclass(frozen=True, kw_only=True)
class Reads:
    """Bytes of the `count` blocks of one kind: weights that every step reads, the chosen routed
    experts, and keys, values and summaries."""

    kind: str
    count: int
    fixed: int
    experts: float
    cache: int

    @property
    def total(self) -> float:
        return self.fixed + self.experts + self.cache


def decode_reads(
    config: ModelConfig,
    weights: ModelWeights,
    load: Load,
    distinct: Sequence[float] | None = None,
) -> tuple[Reads, ...]:
    """What one step reads, one entry a kind in the order of the step.

    `distinct` counts the different experts that the step's rows choose together, one entry a MoE
    layer; None takes the mean over uniform choices. Raises ValueError when its length is wrong.
    """
    moe_layers = [layer.index for layer in config.layers if layer.feed_forward == "moe"]
    chosen = [expected_distinct(config, load.rows)] * len(moe_layers)
    if distinct is not None:
        chosen = list(distinct)
    if len(chosen) != len(moe_layers):
        raise ValueError(f"distinct has {len(chosen)} entries for {len(moe_layers)} MoE layers")
    by_layer = dict(zip(moe_layers, chosen, strict=True))
    embed = Reads(kind=EMBED, count=1, fixed=_row_bytes(weights) * load.rows, experts=0, cache=0)
    body = [
        _layer_reads(config, layer, weights.layers[layer.index], load, by_layer.get(layer.index, 0))
        for layer in config.layers
    ]
    head = Reads(
        kind=HEAD, count=1, fixed=nbytes_of((weights.norm, weights.head)), experts=0, cache=0
    )
    chain = [_mtp_reads(config, weights, depth, load) for depth in range(load.depths)]
    return _merge([embed, *body, head, *chain])


def step_bytes(reads: Iterable[Reads]) -> float:
    return sum(read.total for read in reads)


def expected_distinct(config: ModelConfig, rows: int) -> float:
    """Mean number of different experts that `rows` independent, uniform choices take."""
    if config.moe is None:
        return 0.0
    missed = (1 - config.moe.topk / config.moe.experts) ** rows
    return config.moe.experts * (1 - missed)


def expert_bytes(weights: MoeWeights) -> float:
    """Bytes of one routed expert, its three matrices with their scales."""
    return sum(matrix.nbytes / matrix.experts for matrix in _stacks(weights))


def _layer_reads(
    config: ModelConfig, layer: LayerConfig, weights: LayerWeights, load: Load, distinct: float
) -> Reads:
    fixed, experts = nbytes_of(weights), 0.0
    if isinstance(weights.feed_forward, MoeWeights):
        fixed -= sum(matrix.nbytes for matrix in _stacks(weights.feed_forward))
        experts = distinct * expert_bytes(weights.feed_forward)
    cache = sum(_kv_bytes(layer, config, position) for position in load.positions)
    if config.sparse is not None and weights.attention.indexer is not None:
        scored = [p for p in load.positions if _scores(config.sparse, p + load.width - 1)]
        if not scored:
            fixed -= _scoring_bytes(weights.attention.indexer)
        cache += sum(_summary_bytes(config.sparse, p + load.width - 1) for p in scored)
    kind = f"{layer.attention} + {layer.feed_forward}"
    return Reads(kind=kind, count=1, fixed=fixed, experts=experts, cache=cache)


def _mtp_reads(config: ModelConfig, weights: ModelWeights, depth: int, load: Load) -> Reads:
    """One depth of the chain: as many rows as the step verifies, their embeddings included."""
    layer = config.mtp_layers[depth]
    fixed = nbytes_of(weights.mtp[depth]) + _row_bytes(weights) * load.rows
    cache = sum(_kv_bytes(layer, config, position) for position in load.positions)
    return Reads(kind=MTP, count=1, fixed=fixed, experts=0, cache=cache)


def _kv_bytes(layer: LayerConfig, config: ModelConfig, position: int) -> int:
    """Keys and values that the first row of a slot sees before itself: later rows need no older
    ones, and those from the first row on are made in the step."""
    seen = position
    if layer.window is not None:
        seen = min(seen, layer.window - 1)
    elif (sparse := config.sparse) is not None:
        seen = min(seen, sparse.topk * sparse.region + position % sparse.region)
    return seen * 2 * layer.kv_heads * layer.head_dim * CACHE_ITEM


def _scores(sparse: SparseConfig, position: int) -> bool:
    """Whether a row at `position` has more past regions than it may read (architecture 4.4)."""
    return position // sparse.region > sparse.topk


def _summary_bytes(sparse: SparseConfig, position: int) -> int:
    return position // sparse.region * sparse.proxy_dim * SUMMARY_ITEM


def _scoring_bytes(weights: IndexerWeights) -> int:
    """What only scoring needs; keys and z are needed always, for the summaries of later rows."""
    return nbytes_of((weights.q, weights.w, weights.q_norm))


def _stacks(weights: MoeWeights) -> tuple[ExpertMatrix, ...]:
    return (weights.gate, weights.up, weights.down)


def _row_bytes(weights: ModelWeights) -> int:
    return weights.embed[0].nbytes


def _merge(parts: Sequence[Reads]) -> tuple[Reads, ...]:
    """One entry a kind, in order of first appearance."""
    kinds = dict.fromkeys(part.kind for part in parts)
    groups = [[part for part in parts if part.kind == kind] for kind in kinds]
    return tuple(
        Reads(
            kind=group[0].kind,
            count=len(group),
            fixed=sum(part.fixed for part in group),
            experts=sum(part.experts for part in group),
            cache=sum(part.cache for part in group),
        )
        for group in groups
    )
