"""The weights of a config without their data: meta tensors of the stored shapes and dtypes.

Knows how to hand Checkpoint an inventory in place of files. Keeps true: what loading makes of the
dtypes (widened vectors, packed experts) is done by Checkpoint itself.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from graphs.checkpoint import Checkpoint
from graphs.config import ModelConfig
from graphs.inventory import Expected, text_tensors
from graphs.layouts import Nvfp4Layout, stacks
from graphs.weights import ModelWeights

DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
}


@dataclass(frozen=True, kw_only=True)
class Unstored:
    """Stands for graphs.checkpoint.Located and for its shard."""

    stored: str
    expected: Expected

    @property
    def shard(self) -> "Unstored":
        return self

    def tensor(self, name: str) -> Tensor:
        assert name == self.stored
        dtype = DTYPES[self.expected.dtypes[0]]
        return torch.empty(self.expected.shapes[0], dtype=dtype, device="meta")


class UncheckedNvfp4(Nvfp4Layout):
    """Without the check of the scales' values, which meta tensors do not have."""

    def load(self, stack: Any, read: Any) -> Any:
        parts = [part for part in self.parts(stack) if part.read]
        return self.build({part.suffix: read(f"{stack.module}.{part.suffix}") for part in parts})


def meta_weights(config: ModelConfig) -> ModelWeights:
    """ModelWeights on the meta device, routed experts in NVFP4."""
    layout = UncheckedNvfp4(per_expert=False)
    found = [stack for layer in config.layers for stack in stacks(config, layer)]
    expected = [*text_tensors(config), *(e for stack in found for e in layout.expected(stack))]
    tensors = {e.name: Unstored(stored=e.name, expected=e) for e in expected}
    checkpoint = Checkpoint(
        folder=Path("unstored"),
        config=config,
        tensors=cast(Any, tensors),
        layouts={stack.module: layout for stack in found},
        missing_mtp=(),
        notes=(),
    )
    return checkpoint.load()
