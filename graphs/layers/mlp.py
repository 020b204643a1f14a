"""The dense MLP: clamped SwiGLU between two projections (architecture 3.8)."""

from torch import Tensor

from graphs.layers.activation import swiglu
from graphs.layers.linear import linear
from graphs.weights import DenseWeights


def dense_mlp(h_TH: Tensor, weights: DenseWeights, limit: float | None) -> Tensor:
    """[T, H] -> [T, H] in h's dtype."""
    act_TF = swiglu(linear(h_TH, weights.gate), linear(h_TH, weights.up), limit)
    return linear(act_TF, weights.down)
