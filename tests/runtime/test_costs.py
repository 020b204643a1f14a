"""What is timed for the table of step costs is like what runs later."""

from collections.abc import Sequence
from typing import Any

import pytest

from graphs.plan import EnginePlan
from runtime import costs
from runtime.engine import Engine
from runtime.exchange import Turn
from runtime.timing import Run, Timed
from tests.graphs.whole import golden_model


def test_no_row_of_a_batch_says_what_another_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would share their experts, and a batch would seem to cost what one answer does."""
    model = golden_model()
    plan = EnginePlan(widths=(1, 4), batches=(1, 3), contexts=(256,), prefill=(64,))
    engine = Engine(model.config, model.weights, plan=plan, precision="fp32", context=200, slots=3)
    real, timed = engine.decode, list[tuple[int, int, list[int]]]()

    def decode(turns: Sequence[Turn], **asked: Any) -> Any:
        rows = [token for turn in turns for token in (turn.token, *turn.drafts)]
        timed.append((len(turns), 1 + len(turns[0].drafts), rows))
        return real(turns, **asked)

    def once(runs: Sequence[tuple[str, Run]]) -> Timed:
        for _, run in runs:
            run()
        monkeypatch.setattr(engine, "decode", real)  # what follows is no timing
        return Timed(quick={name: 1.0 for name, _ in runs}, spread=1.0, others=0.0)

    monkeypatch.setattr(engine, "decode", decode)
    monkeypatch.setattr(costs, "timed", once)
    costs.step_costs(engine)
    shapes = [shape for *shape, _ in timed]
    assert shapes == [[batch, width] for batch, width in engine.shapes for _ in ("verify", "whole")]
    for batch, width, rows in timed:
        assert len(set(rows)) == batch * width
