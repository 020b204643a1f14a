"""Random paged state for the tests of the attention operators, and rows cut in every way.

Knows slots whose blocks lie scattered in a pool, the last one scratch. Keeps true: what no slot has
written is not a number, so that a kernel that lets it into a result is seen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from graphs.ops.build import set_threads
from graphs.ops.rotary import rotary_table
from graphs.state import BLOCK, OCTET, Place, read_pool, write_pool

BF16, FP32 = torch.bfloat16, torch.float32
CUTS = (1, 2, 3, 4, 7, 64)

few = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of several slots, and their table."""

    slot: Tensor
    position: Tensor
    table: Tensor

    @property
    def valid(self) -> Tensor:
        return self.slot < self.table.shape[0] - 1

    def __len__(self) -> int:
        return len(self.slot)

    def __getitem__(self, part: slice) -> "Rows":
        return Rows(slot=self.slot[part], position=self.position[part], table=self.table)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_rows(runs: list[tuple[int, int]], *, columns: int, padding: int = 0) -> Rows:
    """Slot i gets `count` rows from position `first` on, of runs[i] = (first, count)."""
    slots = len(runs)
    blocks = torch.randperm(slots * columns, generator=torch.Generator().manual_seed(9)) + 1
    table = torch.cat([blocks.view(slots, columns), torch.zeros(1, columns, dtype=torch.int64)])
    slot = [torch.full((count,), i) for i, (_, count) in enumerate(runs)]
    position = [torch.arange(first, first + count) for first, count in runs]
    return Rows(
        slot=torch.cat([*slot, torch.full((padding,), slots)]),
        position=torch.cat([*position, torch.zeros(padding, dtype=torch.int64)]),
        table=table,
    )


def unwritten(rows: Rows) -> Tensor:
    """Places [B, BLOCK] of the pool that hold no position up to a slot's last row."""
    unused = torch.ones(int(rows.table.max()) + 1, BLOCK, dtype=torch.bool)
    unused[0] = False
    for slot in range(rows.table.shape[0] - 1):
        written = torch.arange(int(rows.position[rows.slot == slot].max()) + 1)
        unused[rows.table[slot, written // BLOCK], written % BLOCK] = False
    return unused


def make_pool(blocks: int, groups: int, width: int, dtype: torch.dtype) -> Tensor:
    """Random keys and values."""
    return random(blocks, groups, BLOCK // OCTET, 2, OCTET, width).to(dtype)


def pool_of(rows: Rows, groups: int, width: int, dtype: torch.dtype) -> Tensor:
    """Keys and values: numbers up to the last row of each slot, NaN after it."""
    unused = unwritten(rows)
    pool = make_pool(len(unused), groups, width, dtype)
    block, offset = unused.nonzero().unbind(1)
    nothing = torch.full((len(block), groups, width), torch.nan, dtype=dtype)
    write_pool(pool, (block, offset), nothing, nothing)
    return pool


def every_head(pool: Tensor, place: Place) -> tuple[Tensor, Tensor]:
    """Keys and values at places [T]: each [T, G, D]."""
    block, offset = (index[:, None] for index in place)
    return read_pool(pool, (block, offset), torch.arange(pool.shape[1]))


def rotary(rows: Rows, width: int, rounding: torch.dtype = BF16) -> Tensor:
    """A table of `width` columns for the rows."""
    return rotary_table(rows.position, 1e4 ** -(torch.arange(width // 2) * 2.0 / width), rounding)


def strided(x: Tensor) -> Tensor:
    """The same values in rows that have other columns after them."""
    return torch.cat([x, torch.full_like(x[:, :3], 7)], dim=1)[:, : x.shape[1]]


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    difference = (found.float() - expected.float()).abs().max()
    return float(difference / expected.float().abs().max().clamp(min=1e-6))


def tolerance(dtype: torch.dtype) -> float:
    """One step of the dtype at the largest number, and what sums in another order may add."""
    return 2**-7 if dtype == BF16 else 3e-6


def check_cuts(run: Callable[[slice], Tensor], count: int) -> None:
    """Rows computed a few at a time, or by two threads, have the bits they have all at once."""
    whole = run(slice(0, count))
    set_threads(2)
    try:
        assert torch.equal(run(slice(0, count)), whole), "with two threads"
    finally:
        set_threads(1)
    for size in CUTS:
        parts = [run(slice(at, min(at + size, count))) for at in range(0, count, size)]
        assert torch.equal(torch.cat(parts), whole), f"{size} at a time"
