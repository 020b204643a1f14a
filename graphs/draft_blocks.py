"""The blocks of the MTP chain: its rows, and one block a depth.

Like blocks.py, whose rules hold here. Keeps true: after every call the drafts equal those of the
whole chain evaluated from scratch over the committed sequence (architecture 5.3), because each call
re-runs the rows whose deeper inputs were still drafts.

Legend as in buffers.py.
"""

import torch
from torch import Tensor

from graphs.backbone import head
from graphs.blocks import Block, fill_rotary, kind_of
from graphs.buffers import RowBuffers
from graphs.config import LayerConfig, ModelConfig
from graphs.history import History, recall, remember
from graphs.layers.rope import Frequencies, Rotary
from graphs.mtp import mtp_block
from graphs.ops.sample import argmax
from graphs.rows import Rows, fill_rows, place_rows
from graphs.weights import MtpWeights

LOOKED = 8  # rows of an observation that predict, at most


def looked_rows(rows: int) -> int:
    """How many of so many observed rows predict."""
    return min(LOOKED, rows)


class DraftBegin(Block):
    """The R rows of each entry that end at its last committed one, from the history ring.

    They cover every row whose deeper MTP inputs were still drafts (architecture 5.3), because no
    draft is older than D-1 rows, and every row that this step committed.
    """

    def forward(
        self,
        slot_S: Tensor,
        position_S: Tensor,
        accepted_S: Tensor,
        history: History,
        frequencies: tuple[Frequencies, ...],
        table: Tensor,
        body: RowBuffers,
        ahead_SA: Tensor,
    ) -> None:
        end_S = position_S + accepted_S
        _recalled(slot_S, end_S, None, history, frequencies, table, body, ahead_SA, self.act)


class ObserveBegin(Block):
    """The R rows of one entry that end at position `end`, from the history ring: the new ones from
    row `first` on, and before them those whose deeper inputs were still drafts. Rows before these
    are not in use: the history may have forgotten them."""

    def forward(
        self,
        slot_S: Tensor,
        end_S: Tensor,
        first_S: Tensor,
        history: History,
        frequencies: tuple[Frequencies, ...],
        table: Tensor,
        body: RowBuffers,
        ahead_SA: Tensor,
    ) -> None:
        count = body.residual.shape[0]
        again = ahead_SA.shape[1] - count - 1  # D - 1
        in_use_SR = torch.arange(count, device=slot_S.device) >= first_S[:, None] - again
        _recalled(slot_S, end_S, in_use_SR, history, frequencies, table, body, ahead_SA, self.act)


def _recalled(
    slot_S: Tensor,
    end_S: Tensor,
    in_use_SR: Tensor | None,
    history: History,
    frequencies: tuple[Frequencies, ...],
    table: Tensor,
    body: RowBuffers,
    ahead_SA: Tensor,
    act: torch.dtype,
) -> None:
    """Place the rows that end at `end`, with their residuals and the tokens after them."""
    count = body.residual.shape[0] // slot_S.shape[0]
    position_SR = end_S[:, None] + torch.arange(1 - count, 1, device=slot_S.device)
    rows = place_rows(slot_S, position_SR, in_use_SR, table)
    hidden_TH, next_T = recall(history, rows)
    fill_rows(body.rows, rows)
    fill_rotary(body, rows, frequencies, act)
    body.residual.copy_(hidden_TH)
    ahead_SA[:, :count].copy_(next_T.view_as(position_SR))


class PrefillDraftBegin(Block):
    """A chunk's rows behind the D rows before it, with the prompt's own tokens ahead of them.

    The D rows are all that read a token of the chunk or behind it, sampled or drafted before the
    prompt said what stands there.
    """

    def forward(
        self,
        slot_S: Tensor,
        position_S: Tensor,
        count_S: Tensor,
        known_S: Tensor,
        tokens_A: Tensor,
        sampled_S: Tensor,
        chunk: RowBuffers,
        history: History,
        frequencies: tuple[Frequencies, ...],
        table: Tensor,
        body: RowBuffers,
        last_S: Tensor,
        ahead_SA: Tensor,
        known_SD: Tensor,
    ) -> None:
        device, depths = slot_S.device, known_SD.shape[1]
        past, count = depths, chunk.residual.shape[0]
        offset_R = torch.arange(-past, count, device=device)
        rows = place_rows(slot_S, position_S[:, None] + offset_R, (offset_R < count_S)[None], table)
        hidden_TH, next_T = recall(history, rows)
        fill_rows(body.rows, rows)
        fill_rotary(body, rows, frequencies, self.act)
        body.residual.copy_(torch.cat([hidden_TH[:past], chunk.residual]))
        # The follower of the last row: the prompt's token if the prompt goes on, else the sample.
        last_S.copy_(past + count_S - 1)
        goes_on_S = known_S > count_S
        follower_S = torch.where(goes_on_S, tokens_A[torch.where(goes_on_S, count_S, 0)], sampled_S)
        # The token after the last old row is the chunk's first.
        ahead_A = torch.cat([next_T[: past - 1], tokens_A, torch.zeros_like(tokens_A[:1])])
        ahead_A = ahead_A.scatter(0, past + count_S - 1, follower_S)
        ahead_SA.copy_(ahead_A[None])
        depth_D = torch.arange(depths, device=device)
        known_SD.copy_((count_S + 1 + depth_D < torch.maximum(known_S, count_S + 1))[None])
        remember(history, rows, body.residual, ahead_A[: past + count])


class Depth(Block):
    """One MTP layer over the rows, the hidden states in place."""

    def __init__(self, config: ModelConfig, act: torch.dtype, layer: LayerConfig):
        super().__init__(config, act, kind_of(layer))
        self.layer = layer

    def run(
        self,
        r_TH: Tensor,
        rows: Rows,
        rotary: Rotary,
        ids_SR: Tensor,
        embed_VH: Tensor,
        weights: MtpWeights,
        pool: Tensor,
        table: Tensor,
    ) -> None:
        """`ids` are the tokens ahead of each row at this depth."""
        r_TH.copy_(
            mtp_block(
                *(r_TH, ids_SR.flatten(), embed_VH, weights, rows, rotary, pool, table),
                *(self.config, self.layer, self.act),
            )
        )


class DraftDepth(Depth):
    """A depth, and its draft for the token behind the last row.

    `next` are the tokens ahead of each row at the following depth; the draft becomes the last row's
    there, unless the prompt knows better.
    """

    def forward(
        self,
        r_TH: Tensor,
        rows: Rows,
        rotary: Rotary,
        ids_SR: Tensor,
        next_SR: Tensor,
        last_S: Tensor,
        known_S: Tensor,
        embed_VH: Tensor,
        weights: MtpWeights,
        pool: Tensor,
        table: Tensor,
        draft_S: Tensor,
    ) -> None:
        entry_S = torch.arange(ids_SR.shape[0], device=ids_SR.device)
        self.run(r_TH, rows, rotary, ids_SR, embed_VH, weights, pool, table)
        end_SH = r_TH.unflatten(0, ids_SR.shape)[entry_S, last_S]
        logits_SV = head(end_SH, weights.head_norm, weights.head, self.config, self.act)
        draft = argmax(logits_SV)
        draft_S.copy_(draft)
        after_S = torch.where(known_S, next_SR[entry_S, last_S], draft)
        next_SR.scatter_(1, last_S[:, None], after_S[:, None])


class ObserveDepth(Depth):
    """A depth of one entry that predicts at its last rows, where right predictions of tokens that
    are there already are counted from row `first` on. `next` and the draft as in DraftDepth.

    Only LOOKED rows predict: a head is as much work as the rest of a small layer, and a few
    predictions tell as much about what the next ones are worth.
    """

    def forward(
        self,
        r_TH: Tensor,
        rows: Rows,
        rotary: Rotary,
        ids_SR: Tensor,
        next_SR: Tensor,
        first_S: Tensor,
        depth_S: Tensor,
        embed_VH: Tensor,
        weights: MtpWeights,
        pool: Tensor,
        table: Tensor,
        draft_S: Tensor,
        hits_S: Tensor,
    ) -> None:
        self.run(r_TH, rows, rotary, ids_SR, embed_VH, weights, pool, table)
        last = ids_SR.shape[1] - 1
        looked = looked_rows(last + 1)
        logits_LV = head(r_TH[-looked:], weights.head_norm, weights.head, self.config, self.act)
        guess_SL = argmax(logits_LV)[None]
        row_L = torch.arange(last + 1 - looked, last + 1, device=ids_SR.device)
        # The token that a row predicts is committed unless it lies behind the last row's next.
        there_SL = (row_L >= first_S[:, None]) & (row_L < last - depth_S[:, None])
        hits_S.copy_((there_SL & (guess_SL == next_SR[:, -looked:])).sum(dim=1))
        draft_S.copy_(guess_SL[:, -1])
        next_SR[:, last].copy_(guess_SL[:, -1])
