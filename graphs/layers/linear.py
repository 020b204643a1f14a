"""The one matrix product of the model, row-invariant.

A library's GEMM may order its sums by the number of rows, so that a row's bits would depend on how
many others travel with it. Here every product runs on tiles of exactly ROW_TILE rows, the last one
padded with zeros. Keeps true: a row's result is the same alone, in a verify window and in a prefill
chunk.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

ROW_TILE = (
    16  # measured: padding 1..4 rows to 16 costs a few microseconds, larger tiles start to cost
)


def linear(x: Tensor, weight_OI: Tensor) -> Tensor:
    """x [..., I] times weight transposed -> [..., O] in x's dtype, accumulated in float32.

    The weight is read in its stored dtype and widened exactly when x is float32.
    """
    rows = x.reshape(-1, x.shape[-1])
    weight = weight_OI.to(x.dtype)
    count = rows.shape[0]
    padded = F.pad(rows, (0, 0, 0, -count % ROW_TILE))
    tiles = [F.linear(tile, weight) for tile in padded.split(ROW_TILE)]
    out = torch.cat(tiles)[:count] if len(tiles) > 1 else tiles[0][:count]
    return out.reshape(*x.shape[:-1], weight.shape[0])
