"""The matrix products of the model, row-invariant (graphs/ops/linear.py says how).

Knows shapes of any rank; the operator knows rows. Keeps true: several matrices that read the same x
cost one operator call, and give the bits they give alone.
"""

from collections.abc import Sequence

from torch import Tensor

from graphs.ops import linear as operator
from graphs.ops.matrices import pack


def linear(x: Tensor, weight_OI: Tensor) -> Tensor:
    """x [..., I] times weight transposed -> [..., O] in x's dtype, accumulated in float32.

    The weight (bf16 or f32) is read in its stored dtype and widened exactly when x is float32.
    """
    return linears(x, [weight_OI])


def linears(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """x [..., I] times each of the weights [O, I] -> [..., sum O], side by side, in x's dtype."""
    tensors, spec = pack(weights)
    out = operator.linear(x.reshape(-1, x.shape[-1]), tensors, spec, x.dtype)
    return out.view(*x.shape[:-1], out.shape[-1])
