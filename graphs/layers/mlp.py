"""The dense MLP: clamped SwiGLU between two projections (architecture 3.8)."""

from torch import Tensor

from graphs.ops import mlp as operator
from graphs.weights import DenseWeights


def dense_mlp(h_TH: Tensor, weights: DenseWeights, limit: float | None) -> Tensor:
    """[T, H] -> [T, H] in h's dtype."""
    return operator.dense_mlp(h_TH, weights.gate, weights.up, weights.down, limit or 0.0)
