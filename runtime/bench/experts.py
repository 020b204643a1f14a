"""How many different experts a step's rows choose, counted while the reference path runs.

Knows the operator that gets the choices. Keeps true: what is counted is what the operator was asked
for, padding left out; nothing that runs inside is changed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

OPERATOR = "fourstep::routed_experts"


class ExpertCounter(TorchDispatchMode):
    """Within this context, `distinct` grows by one entry a MoE layer that runs eagerly."""

    def __init__(self) -> None:
        super().__init__()
        self.distinct: list[int] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.name() == OPERATOR:
            self.count(args[1])
        return func(*args, **(kwargs or {}))

    def count(self, ids_TK: Tensor) -> None:
        """Note the choices of one call, -1 where a row is padding."""
        self.distinct.append(len(ids_TK[ids_TK >= 0].unique()))

    def means(self, layers: int) -> list[float]:
        """Mean count of each of the model's `layers` MoE layers over the steps that ran."""
        assert self.distinct, "no step ran"
        assert len(self.distinct) % layers == 0, "a step ran in part, or not eagerly"
        steps = torch.tensor(self.distinct, dtype=torch.float64).view(-1, layers)
        return steps.mean(0).tolist()
