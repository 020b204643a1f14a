"""Every number of the training recipe, in one place.

Data only. Keeps true: two runs with equal Recipe, packed data and device give equal weights; a
checkpoint of another Recipe is refused.
"""

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Steps, rows a batch (chat rows among them) and learning rates of one stage.

    The rates rise linearly, stay, and fall linearly to zero.
    """

    steps: int
    rows: int
    chat_rows: int
    muon_rate: float
    adam_rate: float
    warm_up: int = 100
    decay_share: float = 0.5
    evaluate_every: int = 500

    def factor(self, step: int) -> float:
        """What step `step` (from 0) multiplies the rates by."""
        rising = (step + 1) / self.warm_up
        falling = (self.steps - step) / max(1.0, self.steps * self.decay_share)
        return min(1.0, rising, falling)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The defaults trained the shipped weights."""

    seed: int = 1
    trunk: Schedule = Schedule(steps=5500, rows=8, chat_rows=4, muon_rate=0.02, adam_rate=3e-3)
    distil: Schedule = Schedule(
        steps=1800, rows=8, chat_rows=4, muon_rate=0.02, adam_rate=2e-3, decay_share=0.8
    )
    align: Schedule = Schedule(
        steps=400,
        rows=4,
        chat_rows=1,
        muon_rate=0.004,
        adam_rate=6e-4,
        warm_up=20,
        decay_share=0.9,
        evaluate_every=100,
    )
    embedding_factor: float = 3.0
    weight_decay: float = 0.05
    bias_rate: float = 1e-3
    sparse_from: float = 0.3  # share of the trunk's steps before attention turns region-sparse
    quantise_from: float = 0.85  # share of the trunk's steps before experts are rounded to NVFP4
    draft_weight: float = 0.5  # align: the drafts' loss beside the next-token loss
    pull_weight: float = 1.0  # align: the backbone's pull towards its drafts
    report_every: int = 20
    save_every: int = 250

    def with_changes(self, changes: dict[str, str]) -> "Recipe":
        """A copy with `name=value` changes; `trunk.steps=10` reaches into a schedule.

        Raises ValueError for an unknown name.
        """
        result = self
        for name, text in changes.items():
            owner, _, inner = name.partition(".")
            if not hasattr(result, owner) or (inner and not hasattr(getattr(result, owner), inner)):
                raise ValueError(f"the recipe has no number {name!r}")
            if inner:
                schedule = getattr(result, owner)
                value = type(getattr(schedule, inner))(text)
                change = {owner: dataclasses.replace(schedule, **{inner: value})}
            else:
                change = {owner: type(getattr(result, owner))(text)}
            result = dataclasses.replace(result, **change)
        return result

    def smoke(self) -> "Recipe":
        """A few steps of everything: shows that the recipe runs, trains nothing."""
        return dataclasses.replace(
            self,
            trunk=dataclasses.replace(self.trunk, steps=16, warm_up=4, evaluate_every=8),
            distil=dataclasses.replace(self.distil, steps=8, warm_up=4),
            align=dataclasses.replace(self.align, steps=8, warm_up=4),
            quantise_from=0.7,
            report_every=4,
            save_every=8,
        )
