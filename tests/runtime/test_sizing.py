"""Pool sizes against what the memory of an engine says that it maps."""

import pytest

from graphs.plan import EnginePlan
from runtime.engine import Engine
from runtime.seats import Seats
from runtime.sizing import pool_sizes
from tests.graphs.random_model import SHAPES, random_model


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prefill", [(16,), (32, 256)])
def test_they_are_what_the_memory_needs(shape: str, prefill: tuple[int, ...]) -> None:
    model = random_model(shape)
    plan, depths = EnginePlan(prefill=prefill), len(model.weights.mtp)
    for positions in (10, 60, 64, 900):
        sizes = pool_sizes(model.config, plan, depths=depths, positions=positions)
        made = Engine(
            *(model.config, model.weights),
            draft_tokens=depths,
            plan=plan,
            context=1024,
            pools=sizes,
        )
        Seats(made).check(positions)
        with pytest.raises(ValueError, match="blocks, and there are"):
            Seats(made).check(positions + 64)
        assert sizes == Seats(made).memory.needed(positions + plan.widths[-1])
    several = pool_sizes(model.config, plan, depths=depths, positions=900, texts=3)
    assert (several.full, several.sliding) == (3 * sizes.full, 3 * sizes.sliding)
