"""What a program is compiled for: a block, and the shapes, types and strides of its arguments.

Knows identity: two calls with one key share one program, so equal layers compile once. Dimensions
that count slots, blocks or table columns are left open, because the memory a server has decides
them. Keeps true: whatever a program's code depends on is in its key.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from graphs.blocks import Block
from graphs.chain import Call
from graphs.config import ModelConfig
from graphs.state import State
from graphs.trees import tensors_of

# The parts of a config that a block's code can depend on and its own identity does not name.
_COMMON = ("hidden_dim", "dense_dim", "moe", "sparse", "rms_eps", "fp32_residual", "ssmax")

_SAMPLE = 5  # an open size while a program is made


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One argument. `open` are the dimensions that any size of at least 1 may take."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    open: tuple[int, ...]

    def empty(self) -> Tensor:
        """An uninitialised tensor like it (a fake one under a FakeTensorMode).

        Open sizes are replaced by a sample: export would take a size of 1 for a constant.
        """
        dtype = getattr(torch, self.dtype)
        if self.open:
            shape = [_SAMPLE if i in self.open else n for i, n in enumerate(self.shape)]
            return torch.empty(shape, dtype=dtype, device=self.device)
        return torch.empty_strided(self.shape, self.stride, dtype=dtype, device=self.device)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One program to compile. `args` is the call's tree with a TensorSpec for every tensor."""

    key: str
    name: str
    block: Block
    args: tuple[Any, ...]


class OpenDims:
    """Which dimensions of a model's state are open: the first of every tensor, both of a table."""

    def __init__(self, state: State):
        self._state = state  # keeps the ids below valid
        self._open: dict[int, tuple[int, ...]] = {id(tensor): (0,) for tensor in tensors_of(state)}
        for table in (state.full_table, state.sliding_table):
            self._open[id(table)] = (0, 1)

    def spec(self, tensor: Tensor) -> TensorSpec:
        """Raises AssertionError for state that is not contiguous: open strides would be wrong."""
        open_dims = self._open.get(id(tensor), ())
        assert not open_dims or tensor.is_contiguous()
        return TensorSpec(
            shape=tuple(tensor.shape),
            stride=tensor.stride(),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=tensor.device.type,
            open=open_dims,
        )


def task_of(call: Call, dims: OpenDims) -> Task:
    """The program that a call needs."""
    args = tree_map_only(Tensor, dims.spec, call.args)
    return Task(
        key=program_key(call.block, args), name=call.block.name, block=call.block, args=args
    )


def program_key(block: Block, args: tuple[Any, ...]) -> str:
    """Name and digest of everything a program depends on besides the toolchain and the sources."""
    # What is no tensor, such as the block size of a format, is a constant of the program.
    specs = [_canonical(x) if isinstance(x, TensorSpec) else x for x in tree_leaves(args)]
    identity = {
        "block": [_plain(part) for part in block.identity],
        "config": common(block.config),
        "act": str(block.act),
        "args": specs,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{block.name}-{digest[:12]}"


def common(config: ModelConfig) -> Mapping[str, Any]:
    """The model-wide options that a block's code may depend on."""
    return {name: _plain(getattr(config, name)) for name in _COMMON}


def _canonical(spec: TensorSpec) -> list[Any]:
    """Open sizes as null; strides only where no size is open (there the tensor is contiguous)."""
    shape = [None if i in spec.open else size for i, size in enumerate(spec.shape)]
    return [spec.dtype, spec.device, shape, None if spec.open else list(spec.stride)]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value
