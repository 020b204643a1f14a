"""Large tensors: what they hold, and that large pages were asked for before the first touch."""

import sys
from pathlib import Path

import pytest
import torch

from graphs.pages import zeros


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(1, 3), (5, 64, 2, 24), (3000, 64, 48)])
def test_they_are_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = zeros(*shape, dtype=dtype)
    assert made.shape == shape
    assert made.dtype == dtype
    assert made.is_contiguous()
    assert not made.view(torch.uint8).any()


def test_a_device_without_memory_has_them_too() -> None:
    made = zeros(4, 5, dtype=torch.bfloat16, device=torch.device("meta"))
    assert (made.device.type, made.nbytes) == ("meta", 40)


@pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for on Linux alone")
def test_large_pages_are_asked_for() -> None:
    made = zeros(2**25, dtype=torch.bfloat16)
    flags = next(
        line
        for place, line in mappings()
        if line.startswith("VmFlags") and place.start <= made.data_ptr() + 2**22 < place.stop
    )
    assert " hg" in flags  # of MADV_HUGEPAGE


def mappings() -> list[tuple[range, str]]:
    """Each line of this process's map of memory, with the addresses that it is about."""
    found, place = list[tuple[range, str]](), range(0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.partition(" ")[0]
        if "-" in first and not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            place = range(begin, end)
        found.append((place, line))
    return found
