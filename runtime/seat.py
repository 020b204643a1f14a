"""A slot given to a request: its parameters and what its penalties know, as engines read them.

Knows SamplingParams and the tensors of graphs.sampling. Does not know masks: they change each step.
Keeps true: nothing of the slot's last request is left.
"""

from collections.abc import Sequence

import torch

from graphs.sampling import BIAS, SamplingState, pack_bits
from runtime.request import SamplingParams

PENALTIES = ("presence", "frequency", "repetition")


def seat(
    sampling: SamplingState,
    slot: int,
    params: SamplingParams,
    prompt: Sequence[int],
    said: Sequence[int] = (),
) -> None:
    """Fill the slot's entries in place; `said` is what the request has answered already."""
    device, vocab = sampling.bias.device, sampling.bias.shape[1]
    sampling.counts[slot] = 0
    if said:
        counts = torch.bincount(torch.tensor(said), minlength=vocab)
        sampling.counts[slot] = counts.to(device, torch.int32)
    sampling.prompt[slot] = pack_bits(prompt, vocab)
    bias = params.logit_bias
    # 64-bit seeds may be unsigned; the noise uses their bits.
    values = {
        **{name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")},
        "seed": (params.seed + 2**63) % 2**64 - 2**63,
        "choice": params.choice,
        **{name: getattr(params, f"{name}_penalty") for name in PENALTIES},
        "flags": BIAS if bias else 0,
    }
    for name, value in values.items():
        getattr(sampling.params, name)[slot] = value
    if bias:  # the row of a slot without the flag is never read
        sampling.bias[slot] = 0
        values_of = torch.tensor(list(bias.values()), dtype=torch.float32, device=device)
        sampling.bias[slot, list(bias)] = values_of
