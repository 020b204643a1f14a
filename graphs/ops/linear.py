"""Operator fourstep::linear: rows times one or several matrices, row-invariant.

A library's GEMM may order its sums by the number of rows, so that a row's bits would depend on how
many others travel with it. The reference runs every product on tiles of exactly ROW_TILE rows, the
last one padded with zeros; the kernel sums every element in one order. Keeps true: a row's result
is the same alone, in a verify window and in a prefill chunk.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.formats import Bf16Experts
from graphs.ops.library import define
from graphs.ops.matrices import unpack

ROW_TILE = (
    16  # measured: padding 1..4 rows to 16 costs a few microseconds, larger tiles start to cost
)


def product(x_TI: Tensor, weight_OI: Tensor) -> Tensor:
    """x [T, I] times weight transposed -> [T, O] in x's dtype, accumulated in float32.

    The weight is read in its stored dtype, widened exactly when x is float32 and rounded when x is
    bf16 and the weight is not.
    """
    weight = weight_OI.to(x_TI.dtype)
    count = x_TI.shape[0]
    padded = F.pad(x_TI, (0, 0, 0, -count % ROW_TILE))
    tiles = [F.linear(tile, weight) for tile in padded.split(ROW_TILE)]
    return torch.cat(tiles)[:count] if len(tiles) > 1 else tiles[0][:count]


def linear_reference(
    x_TI: Tensor, tensors: Sequence[Tensor], spec: str, dtype: torch.dtype
) -> Tensor:
    """[T, I] -> [T, sum O] in `dtype`: the products with all matrices of `spec`, side by side.

    Sums are rounded once, to `dtype`; a `dtype` wider than x's keeps their float32 bits.
    """
    results = []
    for matrix in unpack(tensors, spec):
        plain = isinstance(matrix, Bf16Experts)
        weight = (matrix.weight[0] if plain else matrix.dequantise(0)).to(x_TI.dtype)
        wide = x_TI if dtype == x_TI.dtype else x_TI.float()
        results.append(product(wide, weight).to(dtype))
    return torch.cat(results, dim=-1) if len(results) > 1 else results[0]


def _fake(x_TI: Tensor, tensors: Sequence[Tensor], spec: str, dtype: torch.dtype) -> Tensor:
    width = sum(matrix.out_dim for matrix in unpack(tensors, spec))
    return x_TI.new_empty(x_TI.shape[0], width, dtype=dtype)


linear = define(
    "linear(Tensor x, Tensor[] tensors, str spec, ScalarType dtype) -> Tensor",
    linear_reference,
    _fake,
)
