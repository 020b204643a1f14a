"""Operators that end a step: sample draws a token a row, count_tokens remembers it, argmax drafts.

Knows the order of the rules: bias and mask, penalties, temperature, min-p, top-k, top-p, then keyed
Gumbel noise and the argmax, which is a sample of what the rules left. Keeps true: a row draws the
same token with the same logprob in whatever window, batch or chunk it is computed; temperature 0 is
the plain argmax of the same code; ties go to the lower id; a row without any number to choose, NaN
or all refused, gives -1 for the caller to report.

Legend: S entries, W rows an entry, T = S*W rows, V vocabulary, N slots.
"""

import dataclasses

import torch
from torch import Tensor

from graphs.ops.library import define
from graphs.ops.sample_filters import apply_rules, keep_mask
from graphs.ops.sample_noise import gumbel
from graphs.sampling import Sampling, SamplingState

_PARAMS = tuple(field.name for field in dataclasses.fields(Sampling))


def sample(
    logits_TV: Tensor,
    tokens_SW: Tensor,
    position_S: Tensor,
    slot_S: Tensor,
    params: Sampling,
    counts: Tensor,
    prompt: Tensor,
    bias: Tensor,
    mask_TU: Tensor,
) -> tuple[Tensor, Tensor]:
    """(tokens int64 [S, W], their logprobs f32 [S, W]) from logits f32 [T, V].

    tokens int64 [S, W]: the last committed token, which stands at `position` int64 [S], then the
    drafts, so row k draws the token of position + k + 1. slot int64 [S], N for padding. params have
    one entry a batch entry. counts int32 [N+1, V]: output tokens so far, tokens[:, 0] included;
    prompt int32 [N+1, U]: bit sets; bias f32 [N+1, V]; mask int32 [T, U]: bit sets of what each row
    may draw. The logprob is the model's, before every rule, and NaN where the token is -1.
    """
    values = (getattr(params, name) for name in _PARAMS)
    where = (logits_TV, tokens_SW, position_S, slot_S)
    return _sample_op(*where, *values, counts, prompt, bias, mask_TU)


def _sample(
    logits_TV: Tensor, tokens_SW: Tensor, position_S: Tensor, slot_S: Tensor, *rest: Tensor
) -> tuple[Tensor, Tensor]:
    *values, counts, prompt, bias, mask_TU = rest
    params = Sampling(**dict(zip(_PARAMS, values, strict=True)))
    entry = SamplingState(
        params=params, counts=counts[slot_S], prompt=prompt[slot_S], bias=bias[slot_S]
    )
    x_TV = apply_rules(logits_TV, tokens_SW, entry, mask_TU)
    ahead_W = torch.arange(1, 1 + tokens_SW.shape[1], device=position_S.device)
    position_T = (position_S[:, None] + ahead_W).flatten()
    entry_T = torch.arange(len(slot_S), device=slot_S.device).repeat_interleave(len(ahead_W))
    token_T = _draw(x_TV, params.at(entry_T), position_T)
    return token_T.view_as(tokens_SW), _logprob(logits_TV, token_T).view_as(tokens_SW)


def _draw(x_TV: Tensor, params: Sampling, position_T: Tensor) -> Tensor:
    temperature = params.temperature[:, None]
    warm = torch.where(temperature > 0, temperature, 1.0)
    # Below the row's largest, so that no temperature is too small: two logits never overflow alike.
    scaled_TV = (x_TV - x_TV.amax(-1, keepdim=True)) / warm
    kept_TV = keep_mask(scaled_TV, params.top_k, params.top_p, params.min_p)
    noise_TV = gumbel(params.seed, params.choice, position_T, x_TV.shape[1])
    score_TV = scaled_TV + torch.where(temperature > 0, noise_TV, 0.0)
    return first_argmax(score_TV.masked_fill(~kept_TV, -torch.inf))


def _logprob(logits_TV: Tensor, token_T: Tensor) -> Tensor:
    """log_softmax of each row at its token; the sum in one order whatever the number of rows."""
    below_TV = (logits_TV - logits_TV.amax(-1, keepdim=True)).double()
    total_T = below_TV.exp().cumsum(-1)[:, -1]
    at_T = below_TV.gather(1, token_T.clamp(min=0)[:, None])[:, 0]
    return torch.where(token_T < 0, torch.nan, at_T - total_T.log()).float()


def _sample_fake(logits_TV: Tensor, tokens_SW: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(tokens_SW), torch.empty_like(tokens_SW, dtype=torch.float32)


_NAMES = (
    *("logits", "tokens", "position", "slot"),
    *_PARAMS,
    *("counts", "prompt", "bias", "mask"),
)
_ARGUMENTS = ", ".join(f"Tensor {name}" for name in _NAMES)
_sample_op = define(
    f"sample({_ARGUMENTS}) -> (Tensor token, Tensor logprob)", _sample, _sample_fake
)


def first_argmax(x_TV: Tensor) -> Tensor:
    """Index of the largest entry of each row, the lowest one on a tie: int64 [T].

    -1 where a row holds NaN, for the caller to report: an index that no vocabulary has.
    """
    vocab = x_TV.shape[1]
    index = torch.arange(vocab, device=x_TV.device)
    best = x_TV == x_TV.amax(-1, keepdim=True)
    first_T = torch.where(best, index, vocab).amin(-1)
    return torch.where(first_T < vocab, first_T, -1)


def _argmax_fake(x_TV: Tensor) -> Tensor:
    return x_TV.new_empty(x_TV.shape[0], dtype=torch.int64)


argmax = define("argmax(Tensor logits) -> Tensor", first_argmax, _argmax_fake)


def count_tokens(counts: Tensor, slot_S: Tensor, sampled_SW: Tensor, accepted_S: Tensor) -> None:
    """Add one to counts[slot] of each committed token sampled[s, 0..accepted[s]], in place.

    Padding entries have the scratch slot. A token of -1 counts nowhere.
    """
    _count_op(counts, slot_S, sampled_SW, accepted_S)


def _count(counts: Tensor, slot_S: Tensor, sampled_SW: Tensor, accepted_S: Tensor) -> None:
    index_W = torch.arange(sampled_SW.shape[1], device=sampled_SW.device)
    committed_SW = (index_W <= accepted_S[:, None]) & (sampled_SW >= 0)
    slot_SW = slot_S[:, None].expand_as(sampled_SW)
    place = (slot_SW, sampled_SW.clamp(min=0))
    counts.index_put_(place, committed_SW.to(counts.dtype), accumulate=True)


def _count_fake(*_: Tensor) -> None:
    return None


_count_op = define(
    "count_tokens(Tensor(a!) counts, Tensor slot, Tensor sampled, Tensor accepted) -> ()",
    _count,
    _count_fake,
)
