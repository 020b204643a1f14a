"""How a batch is sampled: one parameter tensor a field, one entry a batch entry; and bit sets.

Knows shapes, dtypes and the values that switch a rule off. Does not know how a token is drawn
(ops/sample.py) or who asked. Keeps true: all of it is fixed-shape tensors, so a step that takes it
never branches on what a request wants.

Legend: S entries of the batch, W rows an entry, T = S*W rows, V vocabulary, U = ceil(V/32) words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BIAS, MASK = 1, 2  # bits of Sampling.flags
WORD = 32  # tokens an int32 word of a bit set holds


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling parameters; order and meaning of the rules: ops/sample.py."""

    seed: Tensor  # [S] int64
    choice: Tensor  # [S] int64, which of a request's n answers
    temperature: Tensor  # [S] f32, 0: greedy
    top_k: Tensor  # [S] int64, 0: off
    top_p: Tensor  # [S] f32, 1: off
    min_p: Tensor  # [S] f32, 0: off
    presence: Tensor  # [S] f32, 0: off
    frequency: Tensor  # [S] f32, 0: off
    repetition: Tensor  # [S] f32, 1: off
    flags: Tensor  # [S] int64, BIAS and MASK: whether State.bias and `mask` count
    mask: Tensor  # [T, U] int32 bit sets of the tokens each row may draw


torch.export.register_dataclass(Sampling, serialized_type_name="fourstep.Sampling")


def words(vocab: int) -> int:
    """int32 words of a bit set over the vocabulary."""
    return -(-vocab // WORD)


def pack_bits(ids: Sequence[int], vocab: int) -> Tensor:
    """The bit set of token ids in [0, vocab), int32 [U]: token v is bit v % 32 of word v // 32."""
    member = torch.zeros(words(vocab) * WORD, dtype=torch.int64)
    member[torch.tensor(ids, dtype=torch.int64)] = 1
    return (member.view(-1, WORD) << torch.arange(WORD)).sum(-1).to(torch.int32)


def unpack_bits(set_U: Tensor, vocab: int) -> Tensor:
    """Bit sets [..., U] as bool [..., vocab]."""
    shift = torch.arange(WORD, dtype=torch.int32, device=set_U.device)
    return ((set_U[..., None] >> shift & 1) > 0).flatten(-2)[..., :vocab]
