"""What a token must pass to be drawn: bias, mask and penalties, then min-p, top-k and top-p.

Knows one rule a function. Does not know noise. Keeps true: a rule that is off changes no bit, row k
of a window sees the drafts before it as output, and each row is worked out by itself.

Legend: S entries, W rows an entry, T = S*W rows, V vocabulary, U words of a bit set.
"""

import torch
from torch import Tensor

from graphs.sampling import BIAS, MASK, SamplingState, unpack_bits


def apply_rules(
    logits_TV: Tensor, tokens_SW: Tensor, entry: SamplingState, mask_TU: Tensor
) -> Tensor:
    """Logits f32 [T, V] after bias, mask and penalties; `entry` has one row a batch entry."""
    x_SWV = logits_TV.view(*tokens_SW.shape, logits_TV.shape[1])
    masked_S11 = ((entry.params.flags & MASK) > 0)[:, None, None]
    refused_SWV = masked_S11 & ~unpack_bits(mask_TU, x_SWV.shape[2]).view_as(x_SWV)
    biased_S1 = ((entry.params.flags & BIAS) > 0)[:, None]
    x_SWV = x_SWV + torch.where(biased_S1, entry.bias, 0.0)[:, None]
    x_SWV = x_SWV + torch.where(refused_SWV, -torch.inf, 0.0)  # a sum: NaN stays NaN
    return _penalise(x_SWV, _output_counts(entry.counts, tokens_SW), entry).flatten(0, 1)


def _output_counts(counts_SV: Tensor, tokens_SW: Tensor) -> Tensor:
    """How often each token stands in the output before each row, [S, W, V]: the counts, which hold
    tokens[:, 0], and the drafts up to the row. An id that no vocabulary has counts nowhere."""
    vocab = counts_SV.shape[1]
    draft_SW = ((tokens_SW >= 0) & (tokens_SW < vocab)).to(counts_SV.dtype)
    draft_SW[:, 0] = 0
    once_SWV = counts_SV.new_zeros(*tokens_SW.shape, vocab)
    once_SWV.scatter_(2, tokens_SW.clamp(0, vocab - 1)[..., None], draft_SW[..., None])
    return counts_SV[:, None] + once_SWV.cumsum(1, dtype=counts_SV.dtype)


def _penalise(x_SWV: Tensor, output_SWV: Tensor, entry: SamplingState) -> Tensor:
    """Repetition (tokens of prompt or output), then frequency, then presence (output alone)."""
    asked = entry.params
    repetition, frequency, presence = (
        value[:, None, None] for value in (asked.repetition, asked.frequency, asked.presence)
    )
    seen_SWV = (output_SWV > 0) | unpack_bits(entry.prompt, x_SWV.shape[2])[:, None]
    repeated_SWV = torch.where(x_SWV > 0, x_SWV / repetition, x_SWV * repetition)
    x_SWV = torch.where(seen_SWV, repeated_SWV, x_SWV)
    return x_SWV - frequency * output_SWV - presence * (output_SWV > 0)


def keep_mask(scaled_TV: Tensor, top_k_T: Tensor, top_p_T: Tensor, min_p_T: Tensor) -> Tensor:
    """bool [T, V]: what min-p, then top-k, then top-p leave of softmax(scaled); never nothing.

    top-p counts the probability before a token in falling order, renormalised over what is left,
    and keeps the token while that is below top_p. Equal logits rank by rising id.
    """
    top_k, top_p, min_p = top_k_T[:, None], top_p_T[:, None], min_p_T[:, None]
    order = scaled_TV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(scaled_TV.shape[1], device=scaled_TV.device)
    relative = torch.exp(order.values - order.values[:, :1])  # p / p_max
    kept = relative >= min_p
    kept &= (rank_V < top_k) | (top_k <= 0)
    mass = torch.where(kept, relative, 0.0).double()
    # The total from the running sum too: sum() orders its terms by the number of rows.
    upto = mass.cumsum(-1)
    share = (upto - mass) / upto[:, -1:]
    kept &= (share < top_p) | (top_p >= 1)
    kept |= rank_V == 0
    return torch.zeros_like(kept).scatter(1, order.indices, kept)
