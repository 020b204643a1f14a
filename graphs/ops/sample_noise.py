"""The noise of a draw: Gumbel variates from a counter-based generator.

Knows Philox and its key. Keeps true: the noise of a token is a pure function of (seed, choice,
absolute position, token id), so a row draws the same token in whatever window, batch or chunk it
is computed.

Legend: T rows, V vocabulary.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # Philox-4x32 (Salmon et al., SC 2011, table 2)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def gumbel(seed_T: Tensor, choice_T: Tensor, position_T: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise f32 [T, V]; the keys are int64, position that of the drawn token."""
    seed, choice, position = (key[:, None] for key in (seed_T, choice_T, position_T))
    token = torch.arange(-(-vocab // 4), device=seed_T.device)
    zero = torch.zeros_like(position + token)
    counter = (token + zero, position & _MASK, position >> 32 & _MASK, choice + zero)
    key = (seed & _MASK, seed >> 32 & _MASK)
    words = torch.stack(philox(counter, key), dim=-1).flatten(1)[:, :vocab]
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


def _multiply(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a product; int64 wraps, its bits are those of the unsigned
    product."""
    product = word * factor
    return (product >> 32) & _MASK, product & _MASK
