"""The tensors of a tree: what a dataclass of weights, state or arguments holds, in order.

Knows trees that torch registers. Keeps true: the order is that in which a program takes its
arguments; what is no tensor, such as an absent indexer, is left out.
"""

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def nbytes_of(tree: Any) -> int:
    """Bytes of every tensor together."""
    return sum(tensor.nbytes for tensor in tensors_of(tree))
