"""Weights in this process's own memory, on large pages, where they fit.

Knows tensors and how much memory there is. Does not know checkpoints. Keeps true: names, shapes,
types and values are those that were given; what would leave too little for others stays mapped.

A step reads weights from end to end, and those of a mapped file mostly by pages of 4 kB: each costs
a walk through the page tables, which is longer yet in a virtual machine.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from graphs.pages import zeros
from graphs.trees import nbytes_of, tensors_of
from graphs.weights import ModelWeights

_ALIGNED = 64  # bytes, a cache line
_SHARE = 0.5  # of the memory that is free
_MEMORY, _LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def resident(weights: ModelWeights) -> ModelWeights:
    """A copy on large pages, or the weights themselves if they take more than half of what is
    free."""
    if nbytes_of(weights) > _SHARE * available():
        return weights
    sizes = [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors_of(weights)]
    arena = zeros(sum(sizes) + _ALIGNED, dtype=torch.uint8)
    begin = -arena.data_ptr() % _ALIGNED

    def placed(tensor: Tensor) -> Tensor:
        nonlocal begin
        place = arena[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        begin += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        return place.copy_(tensor)

    return tree_map_only(Tensor, placed, weights)


def available() -> int:
    """Bytes of memory that may be taken without taking any from others, or the limit of a container
    if that is less."""
    info = _MEMORY.read_text().splitlines()
    line = next(line for line in info if line.startswith("MemAvailable"))
    free = int(line.split()[1]) * 1024
    limit = _LIMIT.read_text().strip() if _LIMIT.exists() else "max"
    return free if limit == "max" else min(free, int(limit))
