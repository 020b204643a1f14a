"""Pool sizes for texts that are to fit whatever else happens.

Knows what runtime.memory maps of one text at most. Does not know how much memory there is. Keeps
true: pools of these sizes never make one of that many texts wait for blocks or start again.
"""

from graphs.config import ModelConfig
from graphs.footprint import Blocks
from graphs.plan import MAX_WIDTH, EnginePlan
from runtime.catch_up import CatchUp
from runtime.pools import PoolSizes


def pool_sizes(
    config: ModelConfig, plan: EnginePlan, *, depths: int, positions: int, texts: int = 1
) -> PoolSizes:
    """For `texts` at once, prompt and answer of at most `positions`, on an engine that was made
    with weights of `depths` MTP layers."""
    reach = CatchUp.of(config, depths, plan.observed).reach
    called = max(plan.largest_call(depths), reach + depths)
    # Behind a call's rows and a window: what catching up runs again, and what a rejection takes
    # back (Memory).
    live = called + reach + 3 * depths + MAX_WIDTH
    blocks = Blocks.of(config, context=positions + MAX_WIDTH, largest_call=live)
    return PoolSizes(full=texts * blocks.full, sliding=texts * blocks.sliding)
