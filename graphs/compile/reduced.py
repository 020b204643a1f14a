"""A model with one layer of each kind and random weights: programs are compiled and checked on it.

Knows which layers share a program. Needs no weight's value, only shapes and formats, so engines for
a model that no machine here could hold are built the same way. Keeps true: every program of the
whole model is a program of the reduced one.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_leaves, tree_map_with_path

from graphs.blocks import kind_of
from graphs.config import LayerConfig, ModelConfig
from graphs.weights import ModelWeights

# Random values are drawn once a type and repeated; the length is odd, so that no two rows agree.
_PERIOD = 1_000_003
_MATRIX_RMS = 1.5  # of x @ W for x of size 1, in every format
_CLAMPED_GAIN = 8.0  # of gate and up: a clamp that no value reaches could be missing unseen
_NVFP4_RMS = 3.1  # of uniformly random e2m1 codes
_NORM_SPREAD = 0.2


def reduce(config: ModelConfig, weights: ModelWeights) -> tuple[ModelConfig, ModelWeights]:
    """The first layer of each kind and weight layout, with random weights of the same layout."""
    kept = list(_kinds(config.layers, weights.layers))
    layers = tuple(replace(layer, index=i) for i, (layer, _) in enumerate(kept))
    drafting = config.mtp_layers[: len(weights.mtp)]
    mtp_kinds = list(_kinds(drafting, weights.mtp))
    drawn = [draw_like(part) for _, part in mtp_kinds]
    mtp = tuple(
        next(d for d, kind in zip(drawn, mtp_kinds, strict=True) if _same(kind, (layer, part)))
        for layer, part in zip(drafting, weights.mtp, strict=True)
    )
    small = replace(
        config,
        layers=layers,
        mtp_layers=tuple(replace(m, index=len(layers) + i) for i, m in enumerate(drafting)),
    )
    return small, ModelWeights(
        embed=draw_like(weights.embed),
        norm=draw_like(weights.norm, name="norm"),
        head=draw_like(weights.head),
        layers=tuple(draw_like(part) for _, part in kept),
        mtp=mtp,
    )


def draw_like(part: Any, *, name: str = "") -> Any:
    """The same tree of tensors with random values; activations stay near size 1."""
    return tree_map_with_path(
        lambda path, leaf: _draw(leaf, name + keystr(path)) if isinstance(leaf, Tensor) else leaf,
        part,
    )


def _kinds(layers: tuple[LayerConfig, ...], parts: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for pair in zip(layers, parts, strict=True):
        if not any(_same(pair, other) for other in found):
            found.append(pair)
            yield pair


def _same(one: tuple[LayerConfig, Any], other: tuple[LayerConfig, Any]) -> bool:
    return kind_of(one[0]) == kind_of(other[0]) and _layout(one[1]) == _layout(other[1])


def _layout(part: Any) -> list[Any]:
    """Shapes and types, and what else the tree holds (block sizes of a format)."""
    return [
        (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(part)
    ]


def _draw(like: Tensor, path: str) -> Tensor:
    generator = torch.Generator().manual_seed(len(path) + like.numel() % 9973)
    count = min(like.numel(), _PERIOD)
    codes = like.dtype in (torch.uint8, torch.float8_e4m3fn)
    if codes:
        values = _codes(like, path, count, generator)
    else:
        values = torch.randn(count, generator=generator) * _scale(like, path)
        if path.endswith("scale_2"):
            values = values.abs() * 0 + _gain(path) * _MATRIX_RMS / _NVFP4_RMS
        elif "scale_inv" in path:
            values = values.abs() * 0 + _gain(path) * 2.0**-9
        values = values.to(like.dtype)
    out = torch.empty(like.shape, dtype=values.dtype)
    flat = out.view(-1)
    for start in range(0, like.numel(), count):
        piece = flat[start : start + count]
        piece.copy_(values[: len(piece)])
    return out.view(like.dtype)


def _codes(like: Tensor, path: str, count: int, generator: torch.Generator) -> Tensor:
    """Raw bytes: any for packed e2m1, finite ones for e4m3; block scales near 2^-5."""
    if path.endswith("scale"):
        return torch.randint(0x10, 0x18, (count,), dtype=torch.uint8, generator=generator)
    values = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    if like.dtype == torch.float8_e4m3fn:
        values = torch.where(values & 0x7F == 0x7F, 0, values)
    return values


def _scale(like: Tensor, path: str) -> float:
    if "norm" in path or "bias" in path or like.dim() < 2:
        return _NORM_SPREAD
    if path == "":  # embedding or head
        return 1.0 if like.shape[0] < like.shape[1] else like.shape[1] ** -0.5
    return _gain(path) * _MATRIX_RMS * like.shape[-1] ** -0.5


def _gain(path: str) -> float:
    clamped = "feed_forward" in path and (".gate" in path or ".up" in path)
    return _CLAMPED_GAIN if clamped else 1.0
