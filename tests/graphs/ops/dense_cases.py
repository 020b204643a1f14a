"""Random matrices of every format and what the tests of the dense operators ask of each kernel.

Knows no operator. Keeps true: the same seed gives the same values, and every row count that a
kernel treats in its own way (one, a few, one group, many) is among SLICES.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from graphs.formats import Bf16Experts, ExpertMatrix, Fp8Experts, Nvfp4Experts
from graphs.ops.build import set_threads

BF16, FP32 = torch.bfloat16, torch.float32
FORMATS = ("bf16", "f32", "fp8", "fp8-odd", "nvfp4")
ROWS = 70
SLICES = ((0, 1), (3, 2), (5, 3), (8, 4), (12, 5), (17, 6), (23, 7), (30, 16), (0, 70))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stack(kind: str, experts: int, out: int, width: int, seed: int = 1) -> ExpertMatrix:
    """E matrices [out, width] in a format; fp8-odd has blocks that nothing is a multiple of."""
    w = random(experts, out, width, seed=seed) / width**0.5
    if kind == "nvfp4":
        return Nvfp4Experts.quantise(w)
    if kind.startswith("fp8"):
        return Fp8Experts.quantise(w, (5, 7) if kind == "fp8-odd" else (16, 32))
    return Bf16Experts(weight=w.to(BF16) if kind == "bf16" else w)


def error(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    difference = (found.float() - expected.float()).abs().max()
    return float(difference / expected.float().abs().max().clamp_min(1e-30))


def tolerance(act: torch.dtype, *kinds: str) -> float:
    """bf16: results are rounded to 8 bits, and the reference rounds an nvfp4 weight that the
    kernel does not."""
    if act == FP32:
        return 3e-6
    return 2e-2 if "nvfp4" in kinds else 1e-2


def check_rows(run: Callable[..., Tensor], *inputs: Tensor) -> None:
    """A row has the same bits in every slice of the inputs, on one thread and on two."""
    set_threads(1)
    whole = run(*inputs)
    for threads in (1, 2):
        set_threads(threads)
        for start, count in SLICES:
            rows = slice(start, start + count)
            assert torch.equal(run(*(x[rows] for x in inputs)), whole[rows]), (
                threads,
                start,
                count,
            )
    set_threads(1)
