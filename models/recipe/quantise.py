"""From float32 masters to what the checkpoint stores: NVFP4 experts, bf16 matrices, f32 vectors.

Knows which tensor is stored how (architecture 2.1, 2.5); does not know files. Keeps true: experts
are rounded with one scale per expert and projection, to nearest, from the unrounded masters.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from graphs.formats import Nvfp4Experts
from models.recipe.experts import nvfp4_values

FLOAT32 = ("norm.weight", "norm.bias", "sparse_indexer_w.weight", "router_bias", "ssmax_s")
FLOAT32_NORMS = ("layernorm.weight", "enorm.weight", "hnorm.weight")


def is_routed_expert(name: str) -> bool:
    return ".moe." in name and name.endswith("_proj.weight")


def with_rounded_experts(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same parameters with routed experts at the values that NVFP4 keeps."""
    with torch.no_grad():
        return {
            name: nvfp4_values(p) if is_routed_expert(name) else p for name, p in parameters.items()
        }


def stored_tensors(name: str, value: Tensor) -> dict[str, Tensor]:
    """The checkpoint's tensors, by name, that hold parameter `name`.

    `input_scale` is part of the format but weight-only inference never reads it: it is 1.
    """
    value = value.detach().cpu()
    if is_routed_expert(name):
        packed = Nvfp4Experts.quantise(value.float())
        return {
            name: packed.weight,
            f"{name}_scale": packed.scale,
            f"{name}_scale_2": packed.scale_2,
            name.replace(".weight", ".input_scale"): torch.ones(value.shape[0]),
        }
    if name.endswith(FLOAT32 + FLOAT32_NORMS):
        return {name: value.float().contiguous()}
    return {name: value.to(torch.bfloat16).contiguous()}
