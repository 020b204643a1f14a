"""The last rows of each slot, for the MTP chain: tokens and the backbone's residuals by position.

Knows a ring of HISTORY places a slot, addressed by position. Does not know what was committed:
every verified row is written, and a rejected one is overwritten before it is read, because the next
step starts at the first rejected position. Keeps true: the ring holds the last HISTORY committed
rows of a slot, less the rows of one decode window.

Legend: T rows, C places, H hidden.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphs.rows import Rows

HISTORY = 256


@dataclass(frozen=True, kw_only=True)
class History:
    ids: Tensor  # [slots+1, C] int64, the token at each position
    hidden: Tensor  # [slots+1, C, H] f32, the residual before the final norm


torch.export.register_dataclass(History, serialized_type_name="fourstep.History")


def make_history(slots: int, hidden_dim: int, device: torch.device | None) -> History:
    """Zeroed, for `slots` slots and the scratch one."""
    return History(
        ids=torch.zeros(slots + 1, HISTORY, dtype=torch.int64, device=device),
        hidden=torch.zeros(slots + 1, HISTORY, hidden_dim, device=device),
    )


def remember(history: History, rows: Rows, hidden_TH: Tensor, next_T: Tensor) -> None:
    """Store each row's residual and the token after it, in place.

    A row that a later one of this call would overwrite goes to the scratch slot instead.
    """
    places, scratch = history.ids.shape[1], history.ids.shape[0] - 1
    slot_T = rows.slot
    if slot_T.shape[0] > places:
        later_T = torch.cat([slot_T[places:], torch.full_like(slot_T[:places], scratch)])
        slot_T = torch.where(later_T == slot_T, scratch, slot_T)
    history.hidden.index_put_((slot_T, rows.position % places), hidden_TH)
    history.ids.index_put_((slot_T, (rows.position + 1) % places), next_T)


def recall(history: History, rows: Rows) -> tuple[Tensor, Tensor]:
    """Residual [T, H] of each row and the token after it [T]."""
    places = history.ids.shape[1]
    hidden_TH = history.hidden[rows.slot, rows.position % places]
    return hidden_TH, history.ids[rows.slot, (rows.position + 1) % places]
