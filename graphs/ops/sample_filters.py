"""What a token must pass to be drawn: bias, mask and penalties, then min-p, top-k and top-p.

Knows one rule a function. Does not know noise. Keeps true: a rule that is off changes no bit, row k
of a window sees the drafts before it as output, and each row is worked out by itself.

Legend: S entries, W rows an entry, T = S*W rows, V vocabulary, U words of a bit set.
"""

import torch
from torch import Tensor

from graphs.sampling import BIAS, MASK, unpack_bits


def bias_and_mask(
    logits_SWV: Tensor, slot_S: Tensor, flags_S: Tensor, bias: Tensor, mask_TU: Tensor
) -> Tensor:
    """Add the slot's bias, and minus infinity where the row's mask has no bit; NaN stays NaN."""
    biased, masked = (flags_S & BIAS) > 0, (flags_S & MASK) > 0
    bias_SV = torch.where(biased[:, None], bias[slot_S], 0.0)
    allowed_SWV = unpack_bits(mask_TU, logits_SWV.shape[2]).view_as(logits_SWV)
    refused_SWV = masked[:, None, None] & ~allowed_SWV
    return (logits_SWV + bias_SV[:, None]) + torch.where(refused_SWV, -torch.inf, 0.0)


def output_counts(counts: Tensor, slot_S: Tensor, tokens_SW: Tensor) -> Tensor:
    """How often each token stands in the output before each row, [S, W, V]: the slot's counts,
    which hold tokens[:, 0], and the drafts up to the row."""
    draft_SW = (tokens_SW >= 0).to(counts.dtype)
    draft_SW[:, 0] = 0
    once_SWV = counts.new_zeros(*tokens_SW.shape, counts.shape[1])
    once_SWV.scatter_(2, tokens_SW.clamp(min=0)[..., None], draft_SW[..., None])
    return counts[slot_S][:, None] + once_SWV.cumsum(1, dtype=counts.dtype)


def penalise(
    x_SWV: Tensor,
    output_SWV: Tensor,
    prompt_SV: Tensor,
    repetition_S: Tensor,
    frequency_S: Tensor,
    presence_S: Tensor,
) -> Tensor:
    """Repetition (tokens of prompt or output), then frequency, then presence (output alone)."""
    factor = repetition_S[:, None, None]
    seen_SWV = (output_SWV > 0) | prompt_SV[:, None]
    repeated = torch.where(x_SWV > 0, x_SWV / factor, x_SWV * factor)
    x_SWV = torch.where(seen_SWV, repeated, x_SWV)
    x_SWV = x_SWV - frequency_S[:, None, None] * output_SWV
    return x_SWV - presence_S[:, None, None] * (output_SWV > 0)


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
