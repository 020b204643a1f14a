"""Pool sizes against what the memory of an engine says that it maps."""

import pytest

from graphs.plan import MAX_WIDTH, EnginePlan
from runtime.engine import Engine
from runtime.pools import PoolSizes
from runtime.seats import Seats
from runtime.sizing import pool_sizes
from tests.graphs.random_model import SHAPES, random_model


def made_with(shape: str, plan: EnginePlan, positions: int) -> tuple[PoolSizes, Seats]:
    model = random_model(shape)
    depths = len(model.weights.mtp)
    sizes = pool_sizes(model.config, plan, depths=depths, positions=positions)
    made = Engine(
        *(model.config, model.weights), draft_tokens=depths, plan=plan, context=1024, pools=sizes
    )
    return sizes, Seats(made)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prefill", [(16,), (32, 256)])
def test_they_are_what_the_memory_needs(shape: str, prefill: tuple[int, ...]) -> None:
    plan = EnginePlan(prefill=prefill)
    for positions in (10, 60, 64, 900):
        sizes, seats = made_with(shape, plan, positions)
        seats.check(positions)
        with pytest.raises(ValueError, match="blocks, and there are"):
            seats.check(positions + 64)
        assert sizes == seats.memory.needed(positions + MAX_WIDTH)


def test_to_the_row() -> None:
    """Calls of every length, so that a row too few would miss a block once."""
    shape = "four groups, NVFP4"
    for rows in range(100, 164):
        sizes, seats = made_with(shape, EnginePlan(prefill=(rows,)), 900)
        assert sizes == seats.memory.needed(900 + MAX_WIDTH), rows


def test_for_several_texts() -> None:
    config, plan = random_model("four groups, NVFP4").config, EnginePlan()
    one, three = (
        pool_sizes(config, plan, depths=3, positions=900, texts=texts) for texts in (1, 3)
    )
    assert (three.full, three.sliding) == (3 * one.full, 3 * one.sliding)
