"""One call of the sampling operator as plain data, for tests: defaults, a run, a part of a batch.

Knows what every argument is when a test does not say. Keeps true: every entry has a slot of its
own, so that entries can be picked in any order.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from graphs.ops.sample import sample
from graphs.sampling import SamplingState, make_sampling, words


@dataclass(frozen=True, kw_only=True)
class Draws:
    """What sample() takes; position is that of the token row 0 draws."""

    logits: Tensor
    tokens: Tensor
    position: Tensor
    slot: Tensor
    state: SamplingState
    mask: Tensor

    def run(self) -> tuple[Tensor, Tensor]:
        state, params = self.state, self.state.params.at(self.slot)
        return sample(
            *(self.logits, self.tokens, self.position - 1, self.slot, params),
            *(state.counts, state.prompt, state.bias, self.mask),
        )

    def pick(self, entries: list[int]) -> "Draws":
        """The entries of these indices, in this order; they keep their slots."""
        width = self.tokens.shape[1]
        rows = (torch.tensor(entries)[:, None] * width + torch.arange(width)).flatten()
        mine = {name: getattr(self, name)[entries] for name in ("tokens", "position", "slot")}
        return replace(self, logits=self.logits[rows], mask=self.mask[rows], **mine)


def draws(logits_TV: Tensor, *, width: int = 1, **given: Any) -> Draws:
    """A call over T/width entries; a value of `given` is one for all entries or one an entry."""
    rows, vocab = logits_TV.shape
    count = rows // width
    state = make_sampling(count, vocab)
    state.params.temperature.fill_(1)
    for name in {field.name for field in fields(state.params)} & given.keys():
        getattr(state.params, name)[:count] = torch.as_tensor(given.pop(name))
    for name in {"counts", "prompt", "bias"} & given.keys():
        getattr(state, name)[:count] = given.pop(name)
    arguments = {
        "tokens": torch.zeros(count, width, dtype=torch.int64),
        "position": torch.as_tensor(given.pop("position", 0)).expand(count),
        "slot": torch.arange(count),
        "mask": torch.zeros(rows, words(vocab), dtype=torch.int32),
    }
    return Draws(logits=logits_TV, state=state, **{**arguments, **given})


def drawn(logits_TV: Tensor, **given: Any) -> Tensor:
    """The tokens of a call, int64 [T]."""
    return draws(logits_TV, **given).run()[0].flatten()
