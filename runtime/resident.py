"""Weights in this process's own memory, on large pages, where they fit.

Knows tensors and how much memory there is. Does not know checkpoints. Keeps true: names, shapes,
types and values are those that were given; what would leave too little for others stays mapped.

A step reads weights from end to end, and those of a mapped file mostly by pages of 4 kB: each costs
a walk through the page tables, which is longer yet in a virtual machine.
"""

import itertools

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from graphs.pages import empty
from graphs.trees import nbytes_of, tensors_of
from graphs.weights import ModelWeights
from runtime.ram import available

_ALIGNED = 64  # bytes, a cache line, at which torch's own memory begins
_SHARE = 0.5  # of the memory that is free


def resident(weights: ModelWeights) -> ModelWeights:
    """A copy on large pages, or the weights themselves if they take more than half of what is
    free."""
    if nbytes_of(weights) > _SHARE * available():
        return weights
    sizes = [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors_of(weights)]
    arena = empty(sum(sizes), dtype=torch.uint8)
    begins = itertools.accumulate(sizes, initial=0)

    def placed(tensor: Tensor) -> Tensor:
        begin = next(begins)
        place = arena[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return place.copy_(tensor)

    return tree_map_only(Tensor, placed, weights)
