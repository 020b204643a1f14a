"""How much memory a model's state takes, counted on tensors that are never made.

Knows how many blocks a slot maps and how many rows of one slot a call has at most. Does not know
which block lies where, or who fills them. Keeps true: the count is that of the engine's own
make_state, scratch included, so a new tensor of the state is counted by itself.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch

from graphs.config import ModelConfig
from graphs.history import HISTORY
from graphs.plan import EnginePlan
from graphs.state import BLOCK, State, make_state

_TAIL_BYTES = 4  # f32


def circle(window: int, rows: int) -> int:
    """Blocks that hold a window and so many rows behind it: positions p-window+1 .. p+rows-1 are
    live at once, on any alignment to blocks."""
    return -(-(window + rows) // BLOCK) + 1


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Blocks of one slot: `full` for the whole context, `sliding` in a circle."""

    full: int
    sliding: int

    @classmethod
    def of(cls, config: ModelConfig, *, context: int, largest_call: int) -> Self:
        """For `context` positions a slot and at most `largest_call` rows of one slot in one
        call."""
        full = -(-context // BLOCK)
        layers = (*config.layers, *config.mtp_layers)
        window = max((layer.window or 0 for layer in layers), default=0)
        return cls(full=full, sliding=min(circle(window, largest_call), full))

    def state(self, config: ModelConfig, *, slots: int, **shape: Any) -> State:
        """Zeroed, with so many blocks a slot; the rest as make_state takes it."""
        return make_state(
            config,
            slots=slots,
            full_blocks=slots * self.full,
            sliding_blocks=slots * self.sliding,
            **shape,
        )


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes for `sequences` sequences of `context` tokens each: `state` is State.nbytes of the
    engine; `tails` is what the prefix cache keeps beside it where one is in use."""

    context: int
    sequences: int
    state: int
    tails: int


def footprint(
    config: ModelConfig,
    *,
    context: int,
    sequences: int = 1,
    plan: EnginePlan | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Footprint:
    """The state of an engine with these shapes that drafts with every MTP layer.

    Exact where a slot's largest call is a prefill chunk: chunks of HISTORY rows or more.
    """
    plan = plan or EnginePlan()
    assert plan.prefill[-1] >= HISTORY, plan.prefill
    depths = len(config.mtp_layers)
    positions = context + plan.widths[-1]
    blocks = Blocks.of(config, context=positions, largest_call=plan.largest_call(depths))
    state = blocks.state(
        config,
        slots=sequences,
        context=positions,
        draft_tokens=depths,
        dtype=dtype,
        device=torch.device("meta"),
    )
    return Footprint(
        context=context,
        sequences=sequences,
        state=state.nbytes,
        tails=(1 + sequences * blocks.full) * depths * config.hidden_dim * _TAIL_BYTES,
    )
