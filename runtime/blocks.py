"""Which physical block a slot holds at a logical position: the tables that the engines read.

Full layers keep every block of a request. Sliding and MTP layers need only the window, so their
blocks are reused in a circle. Keeps true: a circle holds the window plus the rows of the largest
call, so no call overwrites a key that one of its own rows can still see; memory does not grow with
the text.
"""

from typing import Any

import torch

from graphs.config import ModelConfig
from graphs.footprint import Blocks
from graphs.state import SCRATCH_BLOCK, State, make_state
from runtime.pools import PoolSizes


class BlockPlan(Blocks):
    """The blocks of one slot, and where its tables find them."""

    def assign(self, state: State, slot: int) -> None:
        """Fill the tables of `slot` with its own share of both pools, in place."""
        logical = torch.arange(self.full, device=state.full_table.device)
        first = SCRATCH_BLOCK + 1
        state.full_table[slot] = first + slot * self.full + logical
        state.sliding_table[slot] = first + slot * self.sliding + logical % self.sliding


def mapped_state(
    config: ModelConfig,
    *,
    slots: int,
    context: int,
    largest_call: int,
    draft_tokens: int,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> State:
    """Zeroed state for `slots` requests in which every slot has its own blocks for all of it."""
    plan = BlockPlan.of(config, context=context, largest_call=largest_call)
    state = plan.state(
        config,
        slots=slots,
        context=context,
        draft_tokens=draft_tokens,
        dtype=dtype,
        device=device,
    )
    for slot in range(slots):
        plan.assign(state, slot)
    return state


def slot_state(config: ModelConfig, pools: PoolSizes | None, **shape: Any) -> State:
    """mapped_state, or with `pools` of these sizes and empty tables, for runtime.memory to fill."""
    if pools is None:
        return mapped_state(config, **shape)
    del shape["largest_call"]
    return make_state(config, full_blocks=pools.full, sliding_blocks=pools.sliding, **shape)
