"""Rows: where the rows of a call belong, and how entries of a batch become rows.

Knows slots and positions. Keeps true: a row that is not in use, stands before position 0 or belongs
to no slot is padding, and padding belongs to the scratch slot at position 0, so whatever it writes
lands where nothing is read.

Legend: S entries of the batch, W rows an entry, T = S*W.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The T rows of a call; rows of one slot are neighbours in rising position."""

    slot: Tensor  # [T] int64, the scratch slot for padding
    position: Tensor  # [T] int64
    valid: Tensor  # [T] bool, False for padding


torch.export.register_dataclass(Rows, serialized_type_name="fourstep.Rows")


def place_rows(
    slot_S: Tensor, position_SW: Tensor, in_use_SW: Tensor | None, table: Tensor
) -> Rows:
    """Flatten [S, W] rows. `table` [slots+1, M] says how many slots there are."""
    slots = table.shape[0] - 1
    slot_SW = slot_S[:, None].expand_as(position_SW)
    valid_SW = (slot_SW >= 0) & (slot_SW < slots) & (position_SW >= 0)
    if in_use_SW is not None:
        valid_SW = valid_SW & in_use_SW
    return Rows(
        slot=torch.where(valid_SW, slot_SW, slots).flatten(),
        position=torch.where(valid_SW, position_SW, 0).flatten(),
        valid=valid_SW.flatten(),
    )


def fill_rows(buffer: Rows, rows: Rows) -> None:
    """Write rows into the buffer that later blocks read, in place."""
    buffer.slot.copy_(rows.slot)
    buffer.position.copy_(rows.position)
    buffer.valid.copy_(rows.valid)
