"""The fixed tensors that one engine's blocks hand to one another.

Knows shapes. Does not know who fills the inputs or reads the outputs. Keeps true: made once, at one
address for good, so that a bound argument list or a captured graph stays valid; the host writes
`ints` (and `mask`) and reads `out` and `logprobs`, nothing else crosses.

Legend: S entries of the batch, W = 1+K rows an entry, T rows of a call, R rows an entry of the
draft chain, D depths of the chain, V vocabulary, H hidden.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from graphs.config import ModelConfig
from graphs.layers.rope import Rotary, frequencies, rotary_tables
from graphs.plan import MAX_WIDTH
from graphs.rows import Rows
from graphs.sampling import words

ACCEPTED = MAX_WIDTH  # column of Outputs.ints


@dataclass(frozen=True, kw_only=True)
class RowBuffers:
    """The residual of T rows, where they belong, and their rotary tables."""

    residual: Tensor  # f32 [T, H]
    rows: Rows
    rotary: tuple[Rotary, ...]

    @classmethod
    def make(cls, config: ModelConfig, count: int, act: torch.dtype, device: torch.device) -> Self:
        position = torch.zeros(count, dtype=torch.int64, device=device)
        rotary = rotary_tables(position, frequencies(config, device), act)
        return cls(
            residual=torch.zeros(count, config.hidden_dim, device=device),
            rows=Rows(
                slot=torch.zeros_like(position),
                position=position,
                valid=torch.zeros(count, dtype=torch.bool, device=device),
            ),
            rotary=tree_map_only(Tensor, torch.clone, rotary),
        )


@dataclass(frozen=True, kw_only=True)
class DecodeInputs:
    """What the host says about one decode step, one entry a slot of the batch.

    `ints` has room for the largest width, so that its strides, and with them the programs of blocks
    that do not see W, are those of every width.
    """

    ints: Tensor  # int64 [S, 3+MAX_WIDTH]: slot, position of the first token, drafts in use, tokens
    width: int
    mask: Tensor  # int32 [S*W, V/32]: tokens allowed in each row, read where a slot's flags say so

    @classmethod
    def make(cls, config: ModelConfig, entries: int, width: int, device: torch.device) -> Self:
        return cls(
            ints=torch.zeros(entries, 3 + MAX_WIDTH, dtype=torch.int64, device=device),
            width=width,
            mask=allow_all(entries * width, config.vocab_size, device),
        )

    @property
    def slot_S(self) -> Tensor:
        return self.ints[:, 0]

    @property
    def position_S(self) -> Tensor:
        return self.ints[:, 1]

    @property
    def drafted_S(self) -> Tensor:
        return self.ints[:, 2]

    @property
    def tokens_SW(self) -> Tensor:
        return self.ints[:, 3 : 3 + self.width]


@dataclass(frozen=True, kw_only=True)
class PrefillInputs:
    """What the host says about one chunk of one prompt."""

    ints: Tensor  # int64 [4]: slot, position of the first row, rows in use, real entries of tokens
    tokens: Tensor  # int64 [T+D]: the chunk, then the prompt's next tokens as far as there are any
    mask: Tensor  # int32 [1, V/32]

    @classmethod
    def make(cls, config: ModelConfig, rows: int, depths: int, device: torch.device) -> Self:
        return cls(
            ints=torch.zeros(4, dtype=torch.int64, device=device),
            tokens=torch.zeros(rows + depths, dtype=torch.int64, device=device),
            mask=allow_all(1, config.vocab_size, device),
        )

    @property
    def slot_S(self) -> Tensor:
        return self.ints[0:1]

    @property
    def position_S(self) -> Tensor:
        return self.ints[1:2]

    @property
    def count_S(self) -> Tensor:
        return self.ints[2:3]

    @property
    def known_S(self) -> Tensor:
        return self.ints[3:4]


@dataclass(frozen=True, kw_only=True)
class ObserveInputs:
    """Which rows to catch up with: those of `slot` that end at position `end`."""

    ints: Tensor  # int64 [3]: slot, end, index of the first row that is new

    @classmethod
    def make(cls, device: torch.device) -> Self:
        return cls(ints=torch.zeros(3, dtype=torch.int64, device=device))

    @property
    def slot_S(self) -> Tensor:
        return self.ints[0:1]

    @property
    def end_S(self) -> Tensor:
        return self.ints[1:2]

    @property
    def first_S(self) -> Tensor:
        return self.ints[2:3]


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What the host reads back; `ints` has room for the largest width, as in DecodeInputs."""

    ints: Tensor  # int64 [S, MAX_WIDTH+1+D]: sampled, accepted, drafts
    logprobs: Tensor  # f32 [S, W] of the sampled tokens
    sampled: Tensor  # [S, W] view: the target's token after each row
    accepted: Tensor  # [S] view: drafts that were right; tokens 0..accepted are committed
    drafts: Tensor  # [S, D] view: for the next step

    @classmethod
    def make(cls, entries: int, width: int, depths: int, device: torch.device) -> Self:
        ints = torch.zeros(entries, MAX_WIDTH + 1 + depths, dtype=torch.int64, device=device)
        return cls(
            ints=ints,
            logprobs=torch.zeros(entries, width, device=device),
            sampled=ints[:, :width],
            accepted=ints[:, ACCEPTED],
            drafts=ints[:, ACCEPTED + 1 :],
        )


@dataclass(frozen=True, kw_only=True)
class DraftBuffers:
    """The rows the MTP chain runs over: R of each entry, the last committed one at `last`."""

    body: RowBuffers  # S*R rows; the residual holds what the depth before left
    last: Tensor  # int64 [S], index of the last committed row among the R rows
    ahead: Tensor  # int64 [S, R+D]: [j + d] is the token that depth d reads at row j
    known: Tensor  # bool [S, D]: what depth d predicts at `last` is the prompt's next token
    drafts: Tensor  # int64 [S, D], view of the outputs
    depth: Tensor  # int64 [D], 0 to D-1
    hits: Tensor  # int64 [S, D]: right predictions, where they are counted

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        entries: int,
        rows: int,
        drafts: Tensor,
        act: torch.dtype,
    ) -> Self:
        """`drafts` [S, D] is where the chain leaves its drafts."""
        device, depths = drafts.device, drafts.shape[1]

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        return cls(
            body=RowBuffers.make(config, entries * rows, act, device),
            last=zeros(entries) + (rows - 1),
            ahead=zeros(entries, rows + depths),
            known=zeros(entries, depths, dtype=torch.bool),
            drafts=drafts,
            depth=torch.arange(depths, device=device),
            hits=zeros(entries, depths),
        )


def allow_all(rows: int, vocab: int, device: torch.device) -> Tensor:
    """A mask that forbids nothing, int32 [rows, words]."""
    return torch.full((rows, words(vocab)), -1, dtype=torch.int32, device=device)


torch.export.register_dataclass(RowBuffers, serialized_type_name="fourstep.RowBuffers")
