"""The machine and toolchain an artifact is built for: what must be the same where it runs.

Knows this machine. Does not know models or manifests. Keeps true: everything that changes generated
code or its bits is a field here; a package for another instruction set or torch would run, with a
warning at most, so the caller compares and refuses.
"""

import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from graphs.ops.build import ISAS

# What the kernels of each instruction set are compiled for (ops/build.py), as Linux names it.
_FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vbmi", "avx512_bf16", "fma"},
    "avx2": {"avx2", "fma"},
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """device: the processor's name; arch: x86_64, sm_90; isa: the kernels' instruction set."""

    device: str
    arch: str
    isa: str
    torch: str

    def differences(self, other: "Machine") -> list[str]:
        """What `other` has instead, a line a field."""
        mine, theirs = asdict(self), asdict(other)
        return [f"{k}: {mine[k]} here, {theirs[k]} there" for k in mine if mine[k] != theirs[k]]


def this_machine(sku: str | None = None) -> Machine:
    """This machine as SKU `sku`, one of `sku_names()`; by default its best.

    Raises ValueError naming what this machine can build for.
    """
    names = sku_names()
    if sku is not None and sku not in names:
        raise ValueError(f"--sku {sku}: this machine builds for {', '.join(names)}")
    isa = (sku or names[0]).removeprefix("cpu-")
    return Machine(device=_processor(), arch=platform.machine(), isa=isa, torch=torch.__version__)


def sku_names() -> tuple[str, ...]:
    """The SKUs this machine can run, the best first."""
    flags = set(_cpuinfo("flags").split())
    return tuple(f"cpu-{isa}" for isa in reversed(ISAS) if _FLAGS.get(isa, set()) <= flags)


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(field: str) -> str:
    """The first processor's `field` as the Linux kernel reports it, empty elsewhere."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
