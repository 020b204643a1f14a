"""One call of the sampling operator as plain data, for tests: defaults, a run, a part of a batch.

Knows what every argument is when a test does not say. Keeps true: every entry has a slot of its
own, so that entries can be picked in any order.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from graphs.ops.sample import sample
from graphs.sampling import Sampling, words

FLOATS = {"temperature", "top_p", "min_p", "presence", "frequency", "repetition"}
ZERO = ("seed", "choice", "top_k", "min_p", "presence", "frequency", "flags")
OFF = dict.fromkeys(ZERO, 0) | dict.fromkeys(("temperature", "top_p", "repetition"), 1)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """What sample() takes; position is that of the token row 0 draws."""

    logits: Tensor
    tokens: Tensor
    position: Tensor
    slot: Tensor
    sampling: Sampling
    counts: Tensor
    prompt: Tensor
    bias: Tensor

    def run(self) -> tuple[Tensor, Tensor]:
        where = (self.logits, self.tokens, self.position - 1, self.slot)
        return sample(*where, self.sampling, self.counts, self.prompt, self.bias)

    def pick(self, entries: list[int]) -> "Draws":
        """The entries of these indices, in this order; slots keep their rows of state."""
        width = self.tokens.shape[1]
        rows = (torch.tensor(entries)[:, None] * width + torch.arange(width)).flatten()
        names = {field.name for field in fields(Sampling)} - {"mask"}
        mine = {name: getattr(self.sampling, name)[entries] for name in names}
        return replace(
            self,
            logits=self.logits[rows],
            **{name: getattr(self, name)[entries] for name in ("tokens", "position", "slot")},
            sampling=Sampling(**mine, mask=self.sampling.mask[rows]),
        )


def draws(logits_TV: Tensor, *, width: int = 1, **given: Any) -> Draws:
    """A call over T/width entries; a value of `given` is one for all entries or one an entry."""
    rows, vocab = logits_TV.shape
    count = rows // width
    state: dict[str, Tensor] = {
        "counts": torch.zeros(count + 1, vocab, dtype=torch.int32),
        "prompt": torch.zeros(count + 1, words(vocab), dtype=torch.int32),
        "bias": torch.zeros(count + 1, vocab),
        "mask": torch.zeros(rows, words(vocab), dtype=torch.int32),
        "tokens": torch.zeros(count, width, dtype=torch.int64),
        "slot": torch.arange(count),
    }
    state |= {name: given.pop(name) for name in state.keys() & given.keys()}
    values = {
        name: torch.as_tensor(value, dtype=torch.float32 if name in FLOATS else torch.int64)
        .expand(count)
        .clone()
        for name, value in {"position": 0, **OFF, **given}.items()
    }
    position, mask = values.pop("position"), state.pop("mask")
    sampling = Sampling(**values, mask=mask)
    return Draws(logits=logits_TV, position=position, sampling=sampling, **state)


def drawn(logits_TV: Tensor, **given: Any) -> Tensor:
    """The tokens of a call, int64 [T]."""
    return draws(logits_TV, **given).run()[0].flatten()
