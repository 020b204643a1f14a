"""How a batch samples, what each slot has said so far, and bit sets of tokens.

Knows shapes, dtypes and the values that switch a rule off. Does not know how a token is drawn
(ops/sample.py) or who asked. Keeps true: what a request wants is values in fixed tensors, so a step
never branches on it; a new slot's rules are all off.

Legend: S slots without scratch, V vocabulary, U = ceil(V/32) words of a bit set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

BitSet = np.ndarray[Any, np.dtype[np.int32]]

BIAS, MASK = 1, 2  # bits of Sampling.flags
WORD = 32  # tokens an int32 word of a bit set holds


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Parameters, one entry a slot or a batch entry; order and meaning: ops/sample.py."""

    seed: Tensor  # int64
    choice: Tensor  # int64, which of a request's n answers
    temperature: Tensor  # f32, 0: greedy
    top_k: Tensor  # int64, 0: off
    top_p: Tensor  # f32, 1: off
    min_p: Tensor  # f32, 0: off
    presence: Tensor  # f32, 0: off
    frequency: Tensor  # f32, 0: off
    repetition: Tensor  # f32, 1: off
    flags: Tensor  # int64, BIAS and MASK: whether the slot's bias and the step's mask are in use

    def at(self, slot: Tensor) -> "Sampling":
        """The entries of these slots."""
        return Sampling(**{name: value[slot] for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class SamplingState:
    """What each slot's request asks for and what sampling remembers of it; the last is scratch."""

    params: Sampling  # [S+1]
    counts: Tensor  # [S+1, V] int32, how often the output holds each token
    prompt: Tensor  # [S+1, U] int32 bit sets, tokens of the prompt
    bias: Tensor  # [S+1, V] f32, added to the logits


for _kind in (Sampling, SamplingState):
    torch.export.register_dataclass(_kind, serialized_type_name=f"fourstep.{_kind.__name__}")


def make_sampling(slots: int, vocab: int, device: torch.device | None = None) -> SamplingState:
    """Every rule off and greedy, for `slots` requests."""

    def entries(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((slots + 1,), value, dtype=dtype, device=device)

    params = Sampling(
        seed=entries(0, torch.int64),
        choice=entries(0, torch.int64),
        temperature=entries(0),
        top_k=entries(0, torch.int64),
        top_p=entries(1),
        min_p=entries(0),
        presence=entries(0),
        frequency=entries(0),
        repetition=entries(1),
        flags=entries(0, torch.int64),
    )
    counts = torch.zeros(slots + 1, vocab, dtype=torch.int32, device=device)
    return SamplingState(
        params=params,
        counts=counts,
        prompt=counts.new_zeros(slots + 1, words(vocab)),
        bias=torch.zeros_like(counts, dtype=torch.float32),
    )


def words(vocab: int) -> int:
    """int32 words of a bit set over the vocabulary."""
    return -(-vocab // WORD)


def bit_set(ids: Sequence[int], vocab: int) -> BitSet:
    """The bit set of token ids in [0, vocab), int32 [U]: token v is bit v % 32 of word v // 32."""
    member = np.zeros(words(vocab) * WORD, dtype=np.uint8)
    member[np.asarray(ids, dtype=np.int64)] = 1
    return np.packbits(member, bitorder="little").view(np.int32)


def pack_bits(ids: Sequence[int], vocab: int) -> Tensor:
    """bit_set as a tensor."""
    return torch.from_numpy(bit_set(ids, vocab))


def unpack_bits(set_U: Tensor, vocab: int) -> Tensor:
    """Bit sets [..., U] as bool [..., vocab]."""
    shift = torch.arange(WORD, dtype=torch.int32, device=set_U.device)
    return ((set_U[..., None] >> shift & 1) > 0).flatten(-2)[..., :vocab]
