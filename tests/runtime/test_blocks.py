"""Block tables: the sliding circle is long enough, and memory does not grow with the text."""

import pytest

from graphs.config import ModelConfig
from graphs.plan import EnginePlan
from graphs.state import BLOCK, SCRATCH_BLOCK
from runtime.blocks import BlockPlan
from runtime.engine import Engine
from runtime.generate import generate
from runtime.request import SamplingParams
from tests.graphs.whole import fresh_state, golden, golden_model


@pytest.mark.parametrize("largest_call", [1, 4, 16, 64, 200])
@pytest.mark.parametrize("start", [0, 1, 47, 48, 63, 64, 100, 321])
def test_no_call_overwrites_a_key_it_can_see(largest_call: int, start: int) -> None:
    """Fault E3: all positions that live rows can see or write have places of their own."""
    config = golden_model().config
    window = config.layers[0].window
    assert window is not None
    plan = BlockPlan.of(config, context=4096, largest_call=largest_call)
    seen = range(max(0, start - window + 1), start + largest_call)
    places = {(position // BLOCK % plan.sliding, position % BLOCK) for position in seen}
    assert len(places) == len(seen)


def test_slots_share_no_block_and_none_is_scratch() -> None:
    state = fresh_state(golden_model(), slots=3)
    for table in (state.full_table, state.sliding_table):
        owned = [set(row.tolist()) for row in table[:-1]]
        assert SCRATCH_BLOCK not in set.union(*owned)
        assert sum(map(len, owned)) == len(set.union(*owned))
        assert not table[-1].any()


def test_sliding_memory_is_constant() -> None:
    """Fault E5: a longer context adds blocks to the full layers only."""
    config = golden_model().config
    short = BlockPlan.of(config, context=1024, largest_call=64)
    long = BlockPlan.of(config, context=2**20, largest_call=64)
    assert short.sliding == long.sliding
    assert long.full == 2**20 // BLOCK


@pytest.mark.parametrize(("length", "chunk"), [(60, 16), (300, 256)])
def test_long_text_over_a_reused_circle_equals_unlimited_memory(
    monkeypatch: pytest.MonkeyPatch, length: int, chunk: int
) -> None:
    """Decoding far past the circle: reused blocks give the tokens of blocks that are never
    reused. A chunk that is longer than the window and a block too."""
    model, prompt = golden_model(), golden()["prompt_60"].repeat(5)[:length].tolist()
    params = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0.9, seed=5)
    found, highest = [], []
    for circle in (True, False):
        if not circle:
            monkeypatch.setattr(BlockPlan, "of", unlimited)
        made = Engine(
            *(model.config, model.weights),
            plan=EnginePlan(batches=(1,), prefill=(chunk,)),
            draft_tokens=3,
            context=length + 260,
        )
        steps = list(generate(made, prompt, params))
        found.append([token for step in steps for token in step.token_ids])
        highest.append(int(made.state.sliding_table.max()))
    assert found[0] == found[1]
    assert highest[0] < highest[1]


def unlimited(config: ModelConfig, *, context: int, largest_call: int) -> BlockPlan:
    """No block of a slot is ever used again."""
    blocks = -(-context // BLOCK)
    return BlockPlan(full=blocks, sliding=blocks)
