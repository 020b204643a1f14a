"""Logprobs of tokens and of the likeliest ones beside them, from residuals that a call left.

Knows the head and the operator that samples. Does not know slots or requests. Keeps true: a token's
logprob has the bits that the step gave it, because the same operators compute it, and these do not
depend on what other rows are; it is the model's own, before temperature, penalties and masks. Costs
one pass over a row's logits for each logprob, and nothing where nobody asks.

Legend: T rows, V vocabulary, N logprobs asked of one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphs.backbone import head
from graphs.chain import Model
from graphs.ops.sample import sample
from graphs.sampling import MASK, SamplingState, make_sampling, pack_bits

CHUNK = 16  # rows whose logits are held at once


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """A token's logprob, and the likeliest tokens with theirs, falling; ties by rising id."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@torch.inference_mode()
def logprobs_of(
    model: Model, residual_TH: Tensor, rows: Sequence[int], tokens: Sequence[int], top: int
) -> list[TokenLogprobs]:
    """For each row of the residual f32 [T, H]: the logprob of its token, and `top` more."""
    found: list[TokenLogprobs] = []
    state = make_sampling(0, model.config.vocab_size, residual_TH.device)
    for start in range(0, len(rows), CHUNK):
        chunk = slice(start, start + CHUNK)
        picked = residual_TH[torch.tensor(rows[chunk], device=residual_TH.device)]
        weights = model.weights
        logits_TV = head(picked, weights.norm, weights.head, model.config, model.act)
        found += [
            _of_row(logits_V, token, top, state)
            for logits_V, token in zip(logits_TV, tokens[chunk], strict=True)
        ]
    return found


def _of_row(logits_V: Tensor, token: int, top: int, state: SamplingState) -> TokenLogprobs:
    likeliest = _likeliest(logits_V, top)
    own, *others = _logprobs(logits_V, [token, *likeliest], state)
    return TokenLogprobs(token=token, logprob=own, top=tuple(zip(likeliest, others, strict=True)))


def _likeliest(logits_V: Tensor, top: int) -> list[int]:
    if top == 0:
        return []
    least = logits_V.topk(min(top, len(logits_V))).values[-1]
    candidates = torch.nonzero(logits_V >= least)[:, 0]  # ids rising
    order = logits_V[candidates].argsort(descending=True, stable=True)
    return candidates[order[:top]].tolist()


def _logprobs(logits_V: Tensor, tokens: Sequence[int], state: SamplingState) -> list[float]:
    """As the step computes them: each token is drawn by a row that may draw no other."""
    count, device, vocab = len(tokens), logits_V.device, len(logits_V)
    ids = torch.tensor(tokens, device=device)
    mask_NU = torch.stack([pack_bits([token], vocab) for token in tokens]).to(device)
    slot = torch.zeros_like(ids)
    params = state.params.at(slot)
    params.flags.fill_(MASK)
    drawn, logprobs = sample(
        *(logits_V.expand(count, vocab), slot[:, None], slot, slot, params),
        *(state.counts, state.prompt, state.bias, mask_NU),
    )
    assert torch.equal(drawn[:, 0], ids)
    return logprobs[:, 0].tolist()
