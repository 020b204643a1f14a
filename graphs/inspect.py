"""What a checkpoint is and where it fits: the data behind `fourstep inspect`.

Knows how tensors fall into module groups, and counts them from headers alone. Does not print. Keeps
true: every tensor of the index is in exactly one group, so the sums are the checkpoint's.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from graphs.checkpoint import Checkpoint, Located
from graphs.config import ModelConfig
from graphs.footprint import Footprint, footprint
from graphs.names import PROJECTIONS, is_vision, layer_index
from graphs.plan import EnginePlan
from graphs.sku import SKUS, TP_SIZES, Fit, StateCost, allowed_tp, fit, state_cost, tp_obstacles

EXPERTS = "routed experts"
GROUPS = (
    *("embedding", "attention, sliding", "attention, full", "indexer", "dense MLP", "router"),
    *(EXPERTS, "shared experts", "norms", "output head", "MTP layers", "vision"),
)
# Column or row parallel; everything else is held whole by every rank.
SPLIT_MODULES = (
    *(".q_proj", ".k_proj", ".v_proj", ".g_proj", ".o_proj", ".gate_proj", ".up_proj"),
    *(".down_proj", ".sparse_indexer_q", ".sparse_indexer_w", ".shared_head.output"),
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Tensors of one kind and format; `parameters` leaves scales out, globals have no `layers`."""

    name: str
    format: str
    layers: tuple[int, ...]
    tensors: int
    parameters: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class TpOption:
    tp: int
    obstacles: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything `inspect` says. Bytes are stored bytes; `active_parameters` those one token uses
    in the backbone; `state` is the cost at TP 1 and `sizes` what an engine allocates; `vision`
    whether the tower's tensors are there."""

    folder: str
    layers: int
    full_layers: tuple[int, ...]
    moe_layers: int
    experts: int
    experts_per_token: int
    mtp_layers: int
    missing_mtp: tuple[str, ...]
    context: int
    vision: bool
    files: int
    tensors: int
    parameters: int
    active_parameters: int
    bytes: int
    groups: tuple[Group, ...]
    state: StateCost
    sizes: tuple[Footprint, ...]
    tp: tuple[TpOption, ...]
    fits: tuple[Fit, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def inspect_checkpoint(
    checkpoint: Checkpoint, *, context: int | None = None, sequences: int = 1
) -> Report:
    """Describe an opened checkpoint; reads no tensor data.

    The state is counted for `sequences` sequences of `context` tokens; None: of each size that
    engines are built for. Raises ValueError for what the model cannot hold.
    """
    config = checkpoint.config
    groups = _groups(checkpoint)
    return Report(
        folder=str(checkpoint.folder),
        layers=len(config.layers),
        full_layers=config.full_layers,
        moe_layers=sum(layer.feed_forward == "moe" for layer in config.layers),
        experts=config.moe.experts if config.moe else 0,
        experts_per_token=config.moe.topk if config.moe else 0,
        mtp_layers=len(config.mtp_layers),
        missing_mtp=checkpoint.missing_mtp,
        context=config.max_positions,
        vision=any(group.name == "vision" for group in groups),
        files=len({place.shard.path for place in checkpoint.tensors.values()}),
        tensors=len(checkpoint.tensors),
        parameters=sum(group.parameters for group in groups),
        active_parameters=_active(config, groups),
        bytes=sum(group.bytes for group in groups),
        groups=groups,
        state=state_cost(config),
        sizes=tuple(_sizes(config, context, sequences)),
        tp=tuple(
            TpOption(tp=tp, obstacles=tp_obstacles(config, checkpoint.layouts, tp))
            for tp in TP_SIZES
        ),
        fits=tuple(_fits(checkpoint)),
        notes=checkpoint.notes,
    )


def _sizes(config: ModelConfig, context: int | None, sequences: int) -> Iterable[Footprint]:
    most = config.max_positions
    for name, value in (("context", 1 if context is None else context), ("sequences", sequences)):
        if value < 1:
            raise ValueError(f"{name} = {value}: must be at least 1")
    if context is not None and context > most:
        raise ValueError(f"context = {context}: this model has {most} positions")
    usual = [size for size in EnginePlan().contexts if size <= most] or [most]
    for size in usual if context is None else [context]:
        yield footprint(config, context=size, sequences=sequences)


def _fits(checkpoint: Checkpoint) -> Iterable[Fit]:
    split = sum(p.entry.nbytes for n, p in checkpoint.tensors.items() if _is_split(n))
    total = sum(place.entry.nbytes for place in checkpoint.tensors.values())
    sizes = allowed_tp(checkpoint.config, checkpoint.layouts)
    costs = {tp: state_cost(checkpoint.config, tp) for tp in sizes}
    for sku in SKUS:
        for tp in sizes:
            weights = total - split + split // tp
            yield fit(sku, tp, weights=weights, cost=costs[tp])


def _groups(checkpoint: Checkpoint) -> tuple[Group, ...]:
    members: dict[tuple[str, str], list[tuple[str, Located]]] = {}
    for name, place in checkpoint.tensors.items():
        group = group_of(name, checkpoint.config)
        layout = checkpoint.layouts.get(_expert_module(name)) if group == EXPERTS else None
        members.setdefault((group, layout.description if layout else ""), []).append((name, place))
    ordered = sorted(members, key=lambda key: (GROUPS.index(key[0]), key[1]))
    return tuple(_group(*key, members[key]) for key in ordered)


def _group(name: str, description: str, members: list[tuple[str, Located]]) -> Group:
    entries = [place.entry for _, place in members]
    # A vision block is no decoder layer: layer_index gives None for it.
    layers = {index for member, _ in members if (index := layer_index(member)) is not None}
    return Group(
        name=name,
        format=description or ", ".join(sorted({entry.dtype for entry in entries})),
        layers=tuple(sorted(layers)),
        tensors=len(members),
        parameters=sum(_parameters(member, place) for member, place in members),
        bytes=sum(entry.nbytes for entry in entries),
    )


def group_of(name: str, config: ModelConfig) -> str:
    """The module group of a canonical tensor name."""
    if is_vision(name):
        return "vision"
    layer = layer_index(name)
    if layer is None:
        return {"model.norm.weight": "norms", "lm_head.weight": "output head"}.get(
            name, "embedding"
        )
    if layer >= len(config.layers):
        return "MTP layers"
    part = name.removeprefix(f"model.layers.{layer}.")
    if part.startswith("moe."):
        return EXPERTS if _expert_module(name).endswith(PROJECTIONS) else "router"
    if "sparse_indexer" in part or part.endswith("ssmax_s"):
        return "indexer"
    if "norm." in part:
        return "norms"
    if part.startswith("self_attn."):
        return f"attention, {config.layers[layer].attention}"
    return "dense MLP" if part.startswith("mlp.") else "shared experts"


def _expert_module(name: str) -> str:
    """The packed module name that keys Checkpoint.layouts."""
    head, experts, tail = name.rpartition(".")[0].partition(".experts.")
    return f"{head}.{tail.partition('.')[2]}" if experts else head


def _parameters(name: str, place: Located) -> int:
    """Elements of a weight; an NVFP4 byte holds two, scales hold none."""
    count, suffix = math.prod(place.entry.shape), name.rpartition(".")[2]
    if ".moe." not in name or not _expert_module(name).endswith(PROJECTIONS):
        return count
    if not suffix.startswith("weight") or "scale" in suffix:
        return 0
    return 2 * count if place.entry.dtype == "U8" else count


def _is_split(name: str) -> bool:
    module = name.rpartition(".")[0]
    return name == "lm_head.weight" or (not is_vision(name) and module.endswith(SPLIT_MODULES))


def _active(config: ModelConfig, groups: Iterable[Group]) -> int:
    """Backbone parameters that one token multiplies with: all but the experts not chosen."""
    total = 0
    for group in groups:
        if group.name == EXPERTS and config.moe is not None:
            total += group.parameters * config.moe.topk // config.moe.experts
        elif group.name not in ("embedding", "MTP layers", "vision"):
            total += group.parameters
    return total
