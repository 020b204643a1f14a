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


torch.export.register_dataclass(Rotary, serialized_type_name="fourstep.Rotary")


def rotary_tables(position_T: Tensor, config: ModelConfig, act: torch.dtype) -> tuple[Rotary, ...]:
    """The tables of every kind of layer for these rows; a layer's is at `rotary_index`."""
    return tuple(_tables(position_T, layer, config, act) for layer in _kinds(config))


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


def _tables(
    position_T: Tensor, layer: LayerConfig, config: ModelConfig, act: torch.dtype
) -> Rotary:
    def table(dim: int, rounding: torch.dtype) -> Tensor:
        inv = inverse_frequencies(layer.rope_theta, dim, layer.rope_scaling)
        return rotary_table(position_T, inv.to(position_T.device), rounding)

    indexer = None
    if layer.attention == "full" and config.sparse is not None:
        indexer = table(config.sparse.rope_dim, torch.bfloat16)
    return Rotary(attention=table(layer.rotary_dim, act), indexer=indexer)


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
