"""The blocks of a step: what is exported, compiled once per kind and row count, and chained.

A block reads fixed tensors and writes fixed tensors in place; it returns nothing. Its weights and
state are arguments like all others. Keeps true: no Python decision depends on a tensor's value;
padding (rows and slots) goes to the scratch slot; a block says nothing of which layer it runs, so
that equal layers share one program.

Legend as in buffers.py; C places of the history ring.
"""

import dataclasses
import re

import torch
from torch import Tensor, nn

from graphs.backbone import decoder_layer, embed, head
from graphs.buffers import RowBuffers
from graphs.config import LayerConfig, ModelConfig
from graphs.history import History, remember
from graphs.layers.rope import Frequencies, Rotary, rotary_tables
from graphs.ops.sample import count_tokens, sample
from graphs.rows import Rows, fill_rows, place_rows
from graphs.sampling import SamplingState
from graphs.state import IndexerState
from graphs.weights import LayerWeights


class Block(nn.Module):
    """`name` says the kind; everything else a program depends on is in the constructor's
    arguments, which `identity` lists, and in the shapes of the call."""

    def __init__(self, config: ModelConfig, act: torch.dtype, *identity: object):
        super().__init__()
        self.config, self.act = config, act
        self.identity = (type(self).__name__, *identity)

    @property
    def name(self) -> str:
        """For people: progress, file names."""
        words = re.findall("[A-Z][a-z]*", type(self).__name__)
        return "-".join(words).lower()


class DecodeBegin(Block):
    """Places the W rows of each entry and embeds their tokens."""

    def forward(
        self,
        slot_S: Tensor,
        position_S: Tensor,
        drafted_S: Tensor,
        tokens_SW: Tensor,
        embed_VH: Tensor,
        frequencies: tuple[Frequencies, ...],
        table: Tensor,
        body: RowBuffers,
    ) -> None:
        offset_W = torch.arange(tokens_SW.shape[1], device=tokens_SW.device)
        in_use_SW = offset_W <= drafted_S[:, None]
        rows = place_rows(slot_S, position_S[:, None] + offset_W, in_use_SW, table)
        fill_rows(body.rows, rows)
        fill_rotary(body, rows, frequencies, self.act)
        body.residual.copy_(embed(tokens_SW.flatten(), embed_VH))


class PrefillBegin(Block):
    """Places the T rows of a chunk and embeds their tokens; rows past `count` are padding."""

    def forward(
        self,
        slot_S: Tensor,
        position_S: Tensor,
        count_S: Tensor,
        tokens_A: Tensor,
        embed_VH: Tensor,
        frequencies: tuple[Frequencies, ...],
        table: Tensor,
        body: RowBuffers,
    ) -> None:
        offset_T = torch.arange(body.residual.shape[0], device=tokens_A.device)
        rows = place_rows(slot_S, position_S[:, None] + offset_T, (offset_T < count_S)[None], table)
        fill_rows(body.rows, rows)
        fill_rotary(body, rows, frequencies, self.act)
        body.residual.copy_(embed(tokens_A[: len(offset_T)], embed_VH))


class Layer(Block):
    """One decoder layer, the residual in place."""

    def __init__(self, config: ModelConfig, act: torch.dtype, layer: LayerConfig):
        super().__init__(config, act, kind_of(layer))
        self.layer = layer

    @property
    def name(self) -> str:
        return f"layer-{self.layer.attention}-{self.layer.feed_forward}"

    def forward(
        self,
        r_TH: Tensor,
        rows: Rows,
        rotary: Rotary,
        weights: LayerWeights,
        pool: Tensor,
        indexer: IndexerState | None,
        table: Tensor,
    ) -> None:
        r_TH.copy_(
            decoder_layer(
                *(r_TH, rows, rotary, weights, pool, indexer, table),
                *(self.config, self.layer, self.act),
            )
        )


class DecodeEnd(Block):
    """Samples every row, accepts drafts while they equal the samples, remembers both."""

    def forward(
        self,
        slot_S: Tensor,
        position_S: Tensor,
        drafted_S: Tensor,
        tokens_SW: Tensor,
        mask: Tensor,
        r_TH: Tensor,
        rows: Rows,
        norm_H: Tensor,
        head_VH: Tensor,
        sampling: SamplingState,
        history: History | None,
        sampled_SW: Tensor,
        logprobs_SW: Tensor,
        accepted_S: Tensor,
    ) -> None:
        logits_TV = head(r_TH, norm_H, head_VH, self.config, self.act)
        sampled, logprobs = draw(logits_TV, tokens_SW, position_S, slot_S, sampling, mask)
        asked_SK = torch.arange(tokens_SW.shape[1] - 1, device=slot_S.device) < drafted_S[:, None]
        right_SK = ((sampled[:, :-1] == tokens_SW[:, 1:]) & asked_SK).long()
        accepted = right_SK.cumprod(dim=1).sum(dim=1)
        sampled_SW.copy_(sampled)
        logprobs_SW.copy_(logprobs)
        accepted_S.copy_(accepted)
        count_tokens(sampling.counts, slot_S, sampled, accepted)
        if history is not None:
            remember(history, rows, r_TH, sampled.flatten())


class PrefillEnd(Block):
    """Samples after the chunk's last row: the first token, if the prompt ends there."""

    def forward(
        self,
        slot_S: Tensor,
        position_S: Tensor,
        count_S: Tensor,
        known_S: Tensor,
        tokens_A: Tensor,
        mask: Tensor,
        r_TH: Tensor,
        norm_H: Tensor,
        head_VH: Tensor,
        sampling: SamplingState,
        sampled_SW: Tensor,
        logprobs_SW: Tensor,
        accepted_S: Tensor,
    ) -> None:
        last_S = count_S - 1
        logits_SV = head(r_TH[last_S], norm_H, head_VH, self.config, self.act)
        token, logprob = draw(
            logits_SV, tokens_A[last_S][:, None], position_S + last_S, slot_S, sampling, mask
        )
        none_S = torch.zeros_like(count_S)
        sampled_SW.copy_(token)
        logprobs_SW.copy_(logprob)
        accepted_S.copy_(none_S)
        # Inside a prompt nothing is committed: that count goes to the scratch slot.
        scratch = sampling.counts.shape[0] - 1
        count_tokens(
            sampling.counts, torch.where(known_S > count_S, scratch, slot_S), token, none_S
        )


def draw(
    logits_TV: Tensor,
    tokens_SW: Tensor,
    position_S: Tensor,
    slot_S: Tensor,
    state: SamplingState,
    mask: Tensor,
) -> tuple[Tensor, Tensor]:
    """Sample each row as its slot's request asks; see ops/sample.py."""
    params = state.params.at(slot_S)
    return sample(
        *(logits_TV, tokens_SW, position_S, slot_S, params),
        *(state.counts, state.prompt, state.bias, mask),
    )


def kind_of(layer: LayerConfig) -> LayerConfig:
    """The layer without its index: what layers that share a program have in common."""
    return dataclasses.replace(layer, index=0)


def fill_rotary(
    body: RowBuffers, rows: Rows, frequencies: tuple[Frequencies, ...], act: torch.dtype
) -> None:
    """Write the rotary tables of the rows into the buffers, in place."""
    for buffer, table in zip(
        body.rotary, rotary_tables(rows.position, frequencies, act), strict=True
    ):
        buffer.attention.copy_(table.attention)
        if buffer.indexer is not None and table.indexer is not None:
            buffer.indexer.copy_(table.indexer)
