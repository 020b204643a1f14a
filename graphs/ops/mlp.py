"""Operator fourstep::dense_mlp: the clamped SwiGLU between two projections (architecture 3.8).

Keeps true: gate and up are rounded to the activation dtype before the activation, as products of
their own would be; a row's bits do not depend on the others (linear.py).
"""

from torch import Tensor

from graphs.layers.activation import swiglu
from graphs.ops.library import define
from graphs.ops.linear import product


def dense_mlp_reference(
    h_TH: Tensor, gate_FH: Tensor, up_FH: Tensor, down_HF: Tensor, limit: float
) -> Tensor:
    """[T, H] -> [T, H] in h's dtype; limit 0 does not clamp."""
    act_TF = swiglu(product(h_TH, gate_FH), product(h_TH, up_FH), limit or None)
    return product(act_TF, down_HF)


def _fake(h_TH: Tensor, gate_FH: Tensor, up_FH: Tensor, down_HF: Tensor, limit: float) -> Tensor:
    return h_TH.new_empty(h_TH.shape[0], down_HF.shape[0])


dense_mlp = define(
    "dense_mlp(Tensor h, Tensor gate, Tensor up, Tensor down, float limit) -> Tensor",
    dense_mlp_reference,
    _fake,
)
