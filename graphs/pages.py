"""Large tensors that live as long as the process, on large pages where the system has them.

Knows that a step reads a few kilobytes here and there of a cache of gigabytes: with pages of 4 kB
nearly every read waits for the page table as well. Keeps true: pages are advice, so a system
without large ones gives the same tensor.
"""

import ctypes
import sys

import torch
from torch import Tensor

_HUGE = 2**21  # bytes of a large page
_ADVICE = 14  # MADV_HUGEPAGE of linux/mman.h


def empty(*shape: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Of whatever the memory holds, contiguous."""
    tensor = torch.empty(shape, dtype=dtype, device=device)
    if tensor.device.type == "cpu" and sys.platform == "linux":
        _advise(tensor)
    return tensor


def zeros(*shape: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Zeros of one byte or more an element, contiguous."""
    tensor = empty(*shape, dtype=dtype, device=device)
    # Through bytes: not every dtype has a fill of its own.
    tensor.view(torch.uint8).zero_()
    return tensor


def _advise(tensor: Tensor) -> None:
    """Ask for large pages wherever whole ones fit; before the first touch, which settles it."""
    begin = -(-tensor.data_ptr() // _HUGE) * _HUGE
    end = (tensor.data_ptr() + tensor.nbytes) // _HUGE * _HUGE
    if begin < end:
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _ADVICE)
