"""Pool sizes for texts that are to fit whatever else happens.

Knows what runtime.memory maps of one text at most. Does not know how much memory there is. Keeps
true: pools of these sizes never make one of that many texts wait for blocks or start again.
"""

from graphs.config import ModelConfig
from graphs.footprint import Blocks
from graphs.plan import MAX_WIDTH, EnginePlan
from runtime.catch_up import CatchUp
from runtime.pools import PoolSizes


def rows_held(called: int, *, reach: int, depths: int) -> int:
    """Rows beside a window whose sliding blocks one text holds at most: those of a call, what
    catching up runs again, and what a rejection takes back."""
    return called + reach + 3 * depths + MAX_WIDTH


def pool_sizes(
    config: ModelConfig, plan: EnginePlan, *, depths: int, positions: int, texts: int = 1
) -> PoolSizes:
    """For `texts` at once, prompt and answer of at most `positions`, on an engine that was made
    with weights of `depths` MTP layers."""
    catch_up = CatchUp.of(config, depths, plan.observed)
    called = catch_up.largest_call(plan, depths)
    rows = rows_held(called, reach=catch_up.reach, depths=depths)
    blocks = Blocks.of(config, context=positions + MAX_WIDTH, largest_call=rows)
    return PoolSizes(full=texts * blocks.full, sliding=texts * blocks.sliding)
