"""Sampling: filter each row's distribution, add keyed Gumbel noise, take the argmax.

Knows temperature, min-p, top-k, top-p (applied in that order) and Philox. Keeps true: the noise of
a token is a pure function of (seed, choice, absolute position, token id), so a row draws the same
token in whatever window, batch or chunk it is computed; temperature 0 is the plain argmax of the
same code; ties go to the lower id. Gumbel-argmax: argmax(logit/t + g) is a sample of
softmax(logit/t).

Legend: T rows, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # Philox-4x32 (Salmon et al., SC 2011, table 2)
_WEYL = (0x9E3779B9, 0xBB67AE85)


@dataclass(frozen=True, kw_only=True)
class SampleRows:
    """Sampling parameters, one entry a row; `top_k` 0 and `top_p` 1 and `min_p` 0 switch off."""

    seed: Tensor  # [T] int64
    choice: Tensor  # [T] int64, which of a request's n answers
    position: Tensor  # [T] int64, of the token that is drawn
    temperature: Tensor  # [T] f32
    top_k: Tensor  # [T] int64
    top_p: Tensor  # [T] f32
    min_p: Tensor  # [T] f32


torch.export.register_dataclass(SampleRows, serialized_type_name="fourstep.SampleRows")


def sample(logits_TV: Tensor, rows: SampleRows) -> Tensor:
    """One token a row, int64 [T], from logits f32 [T, V]."""
    temperature = rows.temperature[:, None]
    warm = torch.where(temperature > 0, temperature, 1.0)
    # Below the row's largest, so that no temperature is too small: two logits never overflow alike.
    scaled_TV = (logits_TV - logits_TV.amax(-1, keepdim=True)) / warm
    kept_TV = keep_mask(scaled_TV, rows)
    noise_TV = gumbel(rows, logits_TV.shape[1])
    score_TV = scaled_TV + torch.where(temperature > 0, noise_TV, 0.0)
    return first_argmax(score_TV.masked_fill(~kept_TV, -torch.inf))


def keep_mask(scaled_TV: Tensor, rows: SampleRows) -> Tensor:
    """bool [T, V]: what min-p, then top-k, then top-p leave of softmax(scaled); never nothing.

    top-p counts the probability before a token in falling order, renormalised over what is left,
    and keeps the token while that is below top_p. Equal logits rank by rising id.
    """
    order = scaled_TV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(scaled_TV.shape[1], device=scaled_TV.device)
    relative = torch.exp(order.values - order.values[:, :1])  # p / p_max
    kept = relative >= rows.min_p[:, None]
    kept &= (rank_V < rows.top_k[:, None]) | (rows.top_k[:, None] <= 0)
    mass = torch.where(kept, relative, 0.0).double()
    # The total from the running sum too: sum() orders its terms by the number of rows.
    upto = mass.cumsum(-1)
    share = (upto - mass) / upto[:, -1:]
    kept &= (share < rows.top_p[:, None]) | (rows.top_p[:, None] >= 1)
    kept |= rank_V == 0
    return torch.zeros_like(kept).scatter(1, order.indices, kept)


def gumbel(rows: SampleRows, vocab: int) -> Tensor:
    """Standard Gumbel noise f32 [T, V], keyed by (seed, choice, position, token id)."""
    quads = -(-vocab // 4)
    token = torch.arange(quads, device=rows.seed.device)
    position, choice = rows.position[:, None], rows.choice[:, None]
    zero = torch.zeros_like(position + token)
    counter = (token + zero, position & _MASK, position >> 32 & _MASK, choice + zero)
    words = torch.stack(philox(counter, _words(rows.seed[:, None])), dim=-1).flatten(1)[:, :vocab]
    uniform = (words.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform)).float()


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10 on 32-bit words held in int64 tensors; shapes broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def first_argmax(x_TV: Tensor) -> Tensor:
    """Index of the largest entry of each row, the lowest one on a tie: int64 [T].

    -1 where a row holds NaN, for the caller to report: an index that no vocabulary has.
    """
    vocab = x_TV.shape[1]
    index = torch.arange(vocab, device=x_TV.device)
    best = x_TV == x_TV.amax(-1, keepdim=True)
    first_T = torch.where(best, index, vocab).amin(-1)
    return torch.where(first_T < vocab, first_T, -1)


def _multiply(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a product; int64 wraps, its bits are those of the unsigned
    product."""
    product = word * factor
    return (product >> 32) & _MASK, product & _MASK


def _words(seed: Tensor) -> tuple[Tensor, Tensor]:
    return seed & _MASK, (seed >> 32) & _MASK
