"""Weights in this process's own memory, on large pages, where they fit.

Knows tensors and how much memory there is. Does not know checkpoints. Keeps true: names, shapes,
types and values are those that were given; what would leave too little for others stays mapped.

A step reads weights from end to end, and those of a mapped file mostly by pages of 4 kB: each costs
a walk through the page tables, which is longer yet in a virtual machine.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from graphs.pages import zeros
from graphs.trees import nbytes_of, tensors_of
from graphs.weights import ModelWeights

_ALIGNED = 64  # bytes, a cache line
_SHARE = 0.5  # of the memory that is free
_MEMORY, _CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
# A container's limit, its use, and how kinds of use are named: of cgroup 2 and of cgroup 1.
_GROUPS = (
    ("memory.max", "memory.current", ""),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_"),
)


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
    """Bytes of memory that may be taken without taking any from others, or what the limit of a
    container leaves if that is less."""
    free = _numbers(_MEMORY)["MemAvailable:"] * 1024
    return min([free, *(_left(*group) for group in _GROUPS if (_CONTAINER / group[0]).exists())])


def _left(limit: str, use: str, kinds: str) -> int:
    """What the limit leaves. Files that were read, such as a checkpoint, are part of the use and
    make room."""
    most = (_CONTAINER / limit).read_text().strip()
    if most == "max":
        return sys.maxsize
    used = _CONTAINER / use
    kind = _numbers(used.with_name("memory.stat"))
    files = kind[f"{kinds}inactive_file"] + kind[f"{kinds}active_file"]
    return int(most) - int(used.read_text()) + files


def _numbers(path: Path) -> dict[str, int]:
    """A file of names and numbers, which may have units."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number, *_ in lines}
