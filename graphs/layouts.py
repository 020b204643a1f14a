"""Routed experts on disk: one class per format, packed [E, ...] or one tensor per expert.

Knows which tensors a format has for one projection, their shapes, how to recognise it from names
and dtypes, and how to build the in-memory stack. Does not know the quantisation config's opinion.
Keeps true: packed and per-expert files give byte-equal stacks, a packed stack is used as mapped,
and an activation scale is checked where present and never read. Architecture 2.4, 2.5.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from graphs.config import LayerConfig, ModelConfig
from graphs.errors import CheckpointError
from graphs.formats import (
    NVFP4_BLOCK,
    Bf16Experts,
    ExpertMatrix,
    Fp8Experts,
    Nvfp4Experts,
)
from graphs.inventory import Expected, Shape
from graphs.names import PROJECTIONS


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One projection of one MoE layer: `experts` matrices [out_dim, in_dim]."""

    layer: int
    projection: str
    experts: int
    out_dim: int
    in_dim: int

    @property
    def module(self) -> str:
        return f"model.layers.{self.layer}.moe.{self.projection}"

    def expert_module(self, expert: int) -> str:
        return f"model.layers.{self.layer}.moe.experts.{expert}.{self.projection}"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One tensor of a format, its shape for one matrix. A scalar may also be [1] or [E]."""

    suffix: str
    dtype: str
    shape: Shape = ()
    read: bool = True

    @property
    def scalar(self) -> bool:
        return self.shape == ()


@dataclass(frozen=True, kw_only=True)
class Layout(ABC):
    """A format as found for one stack; `per_expert`: each matrix has tensors of its own."""

    label: ClassVar[str]
    per_expert: bool

    @property
    def description(self) -> str:
        return f"{self.label} {'per expert' if self.per_expert else 'packed'}"

    @abstractmethod
    def parts(self, stack: Stack) -> tuple[Part, ...]:
        """The tensors one matrix consists of; those not read are optional."""

    @abstractmethod
    def build(self, tensors: Mapping[str, Tensor]) -> ExpertMatrix:
        """Suffix -> [E, ...] tensors of the parts that are read, to the in-memory stack."""

    def width_unit(self, projection: str) -> int:
        """What a rank's slice of the expert width has to be a multiple of."""
        return 1

    def expected(self, stack: Stack) -> Iterator[Expected]:
        """Every tensor of the stack, for checking names, shapes and dtypes."""
        for part in self.parts(stack):
            for name in self._names(stack, part):
                shapes = self._shapes(stack, part)
                dtypes = (part.dtype,)
                yield Expected(name=name, shapes=shapes, dtypes=dtypes, required=part.read)

    def load(self, stack: Stack, read: Callable[[str], Tensor]) -> ExpertMatrix:
        """The stack, from tensors that passed `expected`."""
        parts = [part for part in self.parts(stack) if part.read]
        matrix = self.build({part.suffix: self._gather(stack, part, read) for part in parts})
        for field in fields(matrix):
            value = getattr(matrix, field.name)
            if isinstance(value, Tensor) and value.dtype == torch.float32:
                _check_finite(f"{stack.module}: {field.name}", value)
        return matrix

    def _names(self, stack: Stack, part: Part) -> list[str]:
        if not self.per_expert:
            return [f"{stack.module}.{part.suffix}"]
        return [f"{stack.expert_module(e)}.{part.suffix}" for e in range(stack.experts)]

    def _shapes(self, stack: Stack, part: Part) -> tuple[Shape, ...]:
        if self.per_expert:
            return ((), (1,)) if part.scalar else (part.shape,)
        stacked = (stack.experts, *part.shape)
        return (stacked, (1,), ()) if part.scalar else (stacked,)

    def _gather(self, stack: Stack, part: Part, read: Callable[[str], Tensor]) -> Tensor:
        tensors = [read(name) for name in self._names(stack, part)]
        if self.per_expert:
            return torch.stack([tensor.view(part.shape) for tensor in tensors])
        if part.scalar:
            return tensors[0].reshape(-1).expand(stack.experts).contiguous()
        return tensors[0]


class Bf16Layout(Layout):
    """weight BF16."""

    label = "BF16"

    def parts(self, stack: Stack) -> tuple[Part, ...]:
        return (Part(suffix="weight", dtype="BF16", shape=(stack.out_dim, stack.in_dim)),)

    def build(self, tensors: Mapping[str, Tensor]) -> ExpertMatrix:
        return Bf16Experts(weight=tensors["weight"])


@dataclass(frozen=True, kw_only=True)
class Fp8BlockLayout(Layout):
    """weight F8_E4M3, weight_scale_inv F32 per block; the last blocks may be ragged."""

    label = "FP8 block"
    block: tuple[int, int]

    def width_unit(self, projection: str) -> int:
        return self.block[1] if projection == "down_proj" else self.block[0]

    def parts(self, stack: Stack) -> tuple[Part, ...]:
        blocks = (-(-stack.out_dim // self.block[0]), -(-stack.in_dim // self.block[1]))
        return (
            Part(suffix="weight", dtype="F8_E4M3", shape=(stack.out_dim, stack.in_dim)),
            Part(suffix="weight_scale_inv", dtype="F32", shape=blocks),
        )

    def build(self, tensors: Mapping[str, Tensor]) -> ExpertMatrix:
        scale_inv = tensors["weight_scale_inv"]
        return Fp8Experts(weight=tensors["weight"], scale_inv=scale_inv, block=self.block)


class Nvfp4Layout(Layout):
    """ModelOpt: weight U8, weight_scale F8_E4M3, weight_scale_2 F32 (a factor), input_scale."""

    label = "NVFP4"
    names: ClassVar[tuple[str, str, str]] = ("weight", "weight_scale_2", "input_scale")

    def width_unit(self, projection: str) -> int:
        return NVFP4_BLOCK if projection == "down_proj" else 1

    def parts(self, stack: Stack) -> tuple[Part, ...]:
        if stack.in_dim % NVFP4_BLOCK:
            raise CheckpointError(
                f"{stack.module}: NVFP4 needs a multiple of {NVFP4_BLOCK} columns, not "
                f"{stack.in_dim}"
            )
        weight, global_scale, input_scale = self.names
        blocks = stack.in_dim // NVFP4_BLOCK
        return (
            Part(suffix=weight, dtype="U8", shape=(stack.out_dim, stack.in_dim // 2)),
            Part(suffix="weight_scale", dtype="F8_E4M3", shape=(stack.out_dim, blocks)),
            Part(suffix=global_scale, dtype="F32"),
            Part(suffix=input_scale, dtype="F32", read=False),
        )

    def build(self, tensors: Mapping[str, Tensor]) -> ExpertMatrix:
        return Nvfp4Experts(
            weight=tensors["weight"],
            scale=tensors["weight_scale"],
            scale_2=tensors["weight_scale_2"],
        )


class Nvfp4CompressedLayout(Nvfp4Layout):
    """compressed-tensors: as ModelOpt under other names, the global scales are divisors."""

    label = "NVFP4 compressed-tensors"
    names = ("weight_packed", "weight_global_scale", "input_global_scale")

    def build(self, tensors: Mapping[str, Tensor]) -> ExpertMatrix:
        return Nvfp4Experts(
            weight=tensors["weight_packed"],
            scale=tensors["weight_scale"],
            scale_2=tensors["weight_global_scale"].reciprocal(),
        )


def stacks(config: ModelConfig, layer: LayerConfig) -> tuple[Stack, ...]:
    """gate, up and down of a MoE layer, in this order; empty for a dense layer."""
    if config.moe is None or layer.feed_forward != "moe":
        return ()
    hidden, inner = config.hidden_dim, config.moe.expert_dim
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    return tuple(
        Stack(
            layer=layer.index,
            projection=projection,
            experts=config.moe.experts,
            out_dim=out_dim,
            in_dim=in_dim,
        )
        for projection, (out_dim, in_dim) in zip(PROJECTIONS, shapes, strict=True)
    )


def detect(stack: Stack, dtypes: Mapping[str, str], block: tuple[int, int] | None) -> Layout:
    """The format of one stack, from the tensors present (canonical name -> stored dtype).

    `block` is the FP8 block size that the config gives. Raises CheckpointError when the stack is
    absent, stored twice, or in a format that is none of these.
    """
    packed = _weight_dtype(stack.module, dtypes)
    experts = (_weight_dtype(stack.expert_module(e), dtypes) for e in range(stack.experts))
    single = next((found for found in experts if found), None)
    if packed and single:
        raise CheckpointError(f"{stack.module} is stored twice, packed and as moe.experts.*")
    found = packed or single
    if found is None:
        raise CheckpointError(
            f"missing tensors: {stack.module}.weight (or {stack.expert_module(0)}.weight ...)"
        )
    return _layout(stack, *found, per_expert=packed is None, block=block)


def _weight_dtype(module: str, dtypes: Mapping[str, str]) -> tuple[str, str] | None:
    """(suffix, dtype) of a module's main tensor."""
    for suffix in ("weight", "weight_packed"):
        if dtype := dtypes.get(f"{module}.{suffix}"):
            return suffix, dtype
    return None


def _layout(
    stack: Stack, suffix: str, dtype: str, *, per_expert: bool, block: tuple[int, int] | None
) -> Layout:
    if suffix == "weight_packed":
        return Nvfp4CompressedLayout(per_expert=per_expert)
    if dtype == "U8":
        return Nvfp4Layout(per_expert=per_expert)
    if dtype == "BF16":
        return Bf16Layout(per_expert=per_expert)
    if dtype != "F8_E4M3":
        raise CheckpointError(
            f"{stack.module}: experts stored as {dtype}; known are BF16, F8_E4M3 and U8 (NVFP4)"
        )
    if block is None:
        raise CheckpointError(
            f"{stack.module} is F8_E4M3, but no quantization_config gives its weight_block_size"
        )
    return Fp8BlockLayout(per_expert=per_expert, block=block)


def _check_finite(name: str, scale: Tensor) -> None:
    """A scale that is inf or NaN was never filled (or is a reciprocal of 0) and would spread."""
    bad = ~torch.isfinite(scale.view(scale.shape[0], -1)).all(1)
    if bad.any():
        experts = ", ".join(str(e) for e in bad.nonzero().flatten().tolist()[:10])
        raise CheckpointError(f"{name} is not finite for experts {experts}")
