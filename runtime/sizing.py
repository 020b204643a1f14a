"""Pool sizes for texts that are to fit whatever else happens.

Knows what runtime.memory maps of one text at most. Does not know how much memory there is. Keeps
true: pools of these sizes never make one of that many texts wait for blocks or start again.
"""

from graphs.config import ModelConfig
from graphs.plan import MAX_WIDTH, EnginePlan
from graphs.state import BLOCK
from runtime.catch_up import CatchUp
from runtime.pools import PoolSizes


def pool_sizes(
    config: ModelConfig, plan: EnginePlan, *, depths: int, positions: int, texts: int = 1
) -> PoolSizes:
    """For `texts` at once, prompt and answer of at most `positions`, on an engine that was made
    with weights of `depths` MTP layers."""
    reach = CatchUp.of(config, depths, plan.observed).reach
    windows = [layer.window or 0 for layer in (*config.layers, *config.mtp_layers)]
    live = reach + 3 * depths + max(windows) + MAX_WIDTH
    called = max(plan.largest_call(depths), reach + depths)
    full = -(-(positions + MAX_WIDTH) // BLOCK)
    return PoolSizes(full=texts * full, sliding=texts * min(full, -(-(live + called) // BLOCK) + 1))
