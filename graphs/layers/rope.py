"""Rotary position embedding: which frequencies a layer has, and the tables of a step.

Knows frequencies, the llama3 rule and which layers share a table; the operators know angles and
rotation. Keeps true: frequencies are never rounded; a table is made once a step and serves every
layer with the same theta, width and scaling.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graphs.config import LayerConfig, ModelConfig, RopeScaling
from graphs.ops.rotary import rotary_table


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Cosines, then sines, of each row (ops/rotary.py), for the layers of one kind."""

    attention: Tensor  # f32 [T, rotary_dim], rounded to the activation dtype
    indexer: Tensor | None  # f32 [T, rope_dim], rounded to bf16; None on layers without indexer


@dataclass(frozen=True, kw_only=True)
class Frequencies:
    """Inverse frequencies for the layers of one kind, f32 [rotary_dim/2] and [rope_dim/2]."""

    attention: Tensor
    indexer: Tensor | None


for _kind in (Rotary, Frequencies):
    torch.export.register_dataclass(_kind, serialized_type_name=f"fourstep.{_kind.__name__}")


def frequencies(config: ModelConfig, device: torch.device | None) -> tuple[Frequencies, ...]:
    """Those of every kind of layer; a layer's are at `rotary_index`."""
    return tuple(_frequencies(layer, config, device) for layer in _kinds(config))


def rotary_tables(
    position_T: Tensor, kinds: tuple[Frequencies, ...], act: torch.dtype
) -> tuple[Rotary, ...]:
    """The tables of every kind of layer for these rows; a layer's is at `rotary_index`."""
    return tuple(_tables(position_T, kind, act) for kind in kinds)


def rotary_index(config: ModelConfig, layer: LayerConfig) -> int:
    """Which of `rotary_tables` a backbone or MTP layer uses."""
    return next(i for i, other in enumerate(_kinds(config)) if _alike(layer, other))


def _kinds(config: ModelConfig) -> list[LayerConfig]:
    """The first layer of each kind."""
    kinds: list[LayerConfig] = []
    for layer in (*config.layers, *config.mtp_layers):
        if not any(_alike(layer, other) for other in kinds):
            kinds.append(layer)
    return kinds


def _alike(one: LayerConfig, other: LayerConfig) -> bool:
    """Whether two layers share their tables. Full layers have an indexer, or none of them has."""
    return (
        one.attention == other.attention
        and one.rope_theta == other.rope_theta
        and one.rotary_dim == other.rotary_dim
        and one.rope_scaling == other.rope_scaling
    )


def _frequencies(
    layer: LayerConfig, config: ModelConfig, device: torch.device | None
) -> Frequencies:
    def inverse(dim: int) -> Tensor:
        return inverse_frequencies(layer.rope_theta, dim, layer.rope_scaling).to(device)

    indexer = None
    if layer.attention == "full" and config.sparse is not None:
        indexer = inverse(config.sparse.rope_dim)
    return Frequencies(attention=inverse(layer.rotary_dim), indexer=indexer)


def _tables(position_T: Tensor, kind: Frequencies, act: torch.dtype) -> Rotary:
    indexer = None
    if kind.indexer is not None:
        indexer = rotary_table(position_T, kind.indexer, torch.bfloat16)
    return Rotary(attention=rotary_table(position_T, kind.attention, act), indexer=indexer)


def inverse_frequencies(theta: float, rotary_dim: int, scaling: RopeScaling | None) -> Tensor:
    """theta^(-2i/rotary_dim) for i < rotary_dim/2, f32 [rotary_dim/2], rescaled by the llama3
    rule."""
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    inv = 1.0 / torch.pow(torch.tensor(theta, dtype=torch.float32), exponent)
    if scaling is None or scaling.factor == 1.0:
        return inv
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    original = scaling.original_max_positions
    wavelength = 2 * math.pi / inv
    blend = (original / wavelength - low) / (high - low)
    blended = inv * ((1 - blend) / scaling.factor + blend)
    slow = torch.where(wavelength > original / low, inv / scaling.factor, blended)
    return torch.where(wavelength < original / high, inv, slow)
