"""Routed-expert weights in memory: one class per precision, with decode and reference quantise.

Knows how BF16, FP8-block and NVFP4 matrices turn into float32 and back. Does not know tensor names
or files (layouts.py does). Keeps true: a stack stays in its checkpoint precision; decoding one
expert touches that expert alone and gives exactly the stored values. Activation scales
(`input_scale`) have no field here, so no computation can read one. Architecture 2.4, 2.5.

Legend: E experts, O rows (out), I columns (in), J = I/2 packed bytes, B = I/16 blocks, C = 16.
"""

import dataclasses
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

NVFP4_BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
_TINY = torch.finfo(torch.float32).tiny
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _e2m1_pair_table() -> Tensor:
    """[256] int64: each byte's two float32 values (low nibble first) as one 8-byte entry."""
    values = torch.tensor(_E2M1_MAGNITUDES)
    values = torch.cat([values, -values])
    byte = torch.arange(256)
    return torch.stack([values[byte & 15], values[byte >> 4]], dim=1).view(torch.int64).flatten()


def _e2m1_bounds() -> Tensor:
    """Midpoints between e2m1 magnitudes, lowered by one ulp where a tie rounds up (to even)."""
    values = torch.tensor(_E2M1_MAGNITUDES)
    middles = (values[:-1] + values[1:]) / 2
    up = torch.arange(7) % 2 == 1
    return torch.where(up, torch.nextafter(middles, torch.zeros(())), middles)


# Pairs halve the number of look-ups; for e4m3 a table is faster than the cast, and equal to it.
_PAIRS = _e2m1_pair_table()
_E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
_BOUNDS = _e2m1_bounds()


@dataclass(frozen=True, kw_only=True)
class ExpertMatrix:
    """E matrices [O, I] of one projection, stacked in their checkpoint precision."""

    weight: Tensor

    @property
    def experts(self) -> int:
        return self.weight.shape[0]

    @property
    def out_dim(self) -> int:
        return self.weight.shape[1]

    @property
    def in_dim(self) -> int:
        return self.weight.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales together."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return sum(value.nbytes for value in values if isinstance(value, Tensor))

    def dequantise(self, expert: int) -> Tensor:
        """The matrix of one expert, [O, I] float32, exactly the stored values."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Bf16Experts(ExpertMatrix):
    """weight [E, O, I] bf16."""

    def dequantise(self, expert: int) -> Tensor:
        return self.weight[expert].float()


@dataclass(frozen=True, kw_only=True)
class Fp8Experts(ExpertMatrix):
    """weight [E, O, I] e4m3; scale_inv [E, ceil(O/b0), ceil(I/b1)] f32, one per block (b0, b1).

    W[r, c] = weight[r, c] * scale_inv[r // b0, c // b1]; the last blocks may be ragged.
    """

    scale_inv: Tensor
    block: tuple[int, int]

    def dequantise(self, expert: int) -> Tensor:
        scale_OI = _expand_blocks(self.scale_inv[expert], self.block, self.out_dim, self.in_dim)
        return _from_e4m3(self.weight[expert]).mul_(scale_OI)

    @classmethod
    def quantise(cls, w_EOI: Tensor, block: tuple[int, int]) -> Self:
        """Reference quantiser: each block's largest magnitude becomes 448. w [E, O, I] float32."""
        out_dim, in_dim = w_EOI.shape[1:]
        pad = (0, -in_dim % block[1], 0, -out_dim % block[0])
        padded = torch.nn.functional.pad(w_EOI, pad)
        blocks = padded.unfold(1, block[0], block[0]).unfold(2, block[1], block[1])
        scale = (blocks.abs().amax(dim=(3, 4)) / E4M3_MAX).clamp_min(_TINY)
        expanded = torch.stack([_expand_blocks(s, block, out_dim, in_dim) for s in scale])
        weight = to_e4m3(w_EOI / expanded)
        return cls(weight=weight, scale_inv=scale, block=block)


@dataclass(frozen=True, kw_only=True)
class Nvfp4Experts(ExpertMatrix):
    """weight [E, O, J] u8, two e2m1 a byte; scale [E, O, B] e4m3; scale_2 [E] f32.

    W = e2m1 * (scale * scale_2), the two scales multiplied first, low nibble = even column. gate
    and up of one expert are separate stacks, so their scale_2 may differ freely.
    """

    scale: Tensor
    scale_2: Tensor

    @property
    def in_dim(self) -> int:
        return self.weight.shape[2] * 2

    def dequantise(self, expert: int) -> Tensor:
        weight_OJ, scale_OB = self.weight[expert], self.scale[expert]
        pairs = _PAIRS.to(weight_OJ.device).index_select(0, weight_OJ.flatten().int())
        scale = _from_e4m3(scale_OB).mul_(self.scale_2[expert]).unsqueeze(-1)
        w_OBC = pairs.view(torch.float32).view(*scale_OB.shape, NVFP4_BLOCK)
        return w_OBC.mul_(scale).view(self.out_dim, self.in_dim)

    @classmethod
    def quantise(cls, w_EOI: Tensor) -> Self:
        """Reference quantiser: largest block scale 448, ties to even. w [E, O, I] f32, 16 | I."""
        if w_EOI.shape[-1] % NVFP4_BLOCK:
            raise ValueError(f"NVFP4 needs a multiple of {NVFP4_BLOCK} columns: {w_EOI.shape}")
        w_EOBC = w_EOI.unflatten(-1, (-1, NVFP4_BLOCK))
        amax_EOB = w_EOBC.abs().amax(-1)
        scale_2 = (amax_EOB.amax((1, 2)) / (E2M1_MAX * E4M3_MAX)).clamp_min(_TINY)
        scale_EOB = to_e4m3(amax_EOB / E2M1_MAX / scale_2[:, None, None])
        step = scale_EOB.float() * scale_2[:, None, None]
        codes = encode_e2m1(torch.where(step[..., None] > 0, w_EOBC / step[..., None], 0.0))
        low, high = codes.flatten(-2).unflatten(-1, (-1, 2)).unbind(-1)
        return cls(weight=low | (high << 4), scale=scale_EOB, scale_2=scale_2)


def encode_e2m1(x: Tensor) -> Tensor:
    """Nearest e2m1 code of each float32 value, u8, sign in bit 3, saturating, ties to even."""
    magnitude = torch.bucketize(x.abs(), _BOUNDS.to(x.device)).to(torch.uint8)
    return magnitude | ((x < 0).to(torch.uint8) << 3)


def to_e4m3(x: Tensor) -> Tensor:
    """Round to e4m3, saturating: the CPU cast alone turns what is above 464 into NaN."""
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def _from_e4m3(x: Tensor) -> Tensor:
    """Widen to float32, a fresh tensor."""
    codes = x.view(torch.uint8).flatten().int()
    return _E4M3.to(x.device).index_select(0, codes).view(x.shape)


def _expand_blocks(scale: Tensor, block: tuple[int, int], out_dim: int, in_dim: int) -> Tensor:
    """[rows, columns] block scales -> [out_dim, in_dim], ragged last blocks cut."""
    # Columns first, so that the larger repeat copies whole rows.
    columns = scale.repeat_interleave(block[1], dim=1)[:, :in_dim]
    return columns.repeat_interleave(block[0], dim=0)[:out_dim]


for _kind in (Bf16Experts, Fp8Experts, Nvfp4Experts):
    torch.export.register_dataclass(_kind, serialized_type_name=f"fourstep.{_kind.__name__}")
