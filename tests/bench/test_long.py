"""The benchmark of long contexts on a tiny model and on made-up numbers; no speed is judged."""

import dataclasses
from pathlib import Path

import pytest
import torch

from graphs.checkpoint import Checkpoint
from graphs.plan import EnginePlan
from graphs.synthetic import SMALL, synthetic_config
from graphs.synthetic_weights import write_synthetic
from runtime.bench.run import Options, Subject
from runtime.programs import Programs
from tests.bench.filled import ATTENTION, HOT, SCORING, Steps, fill
from tests.bench.long import BACK, CONTEXT, Result, Size, measure, numbers, plot, section


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic(folder, SMALL)
    checkpoint = Checkpoint.open(folder)
    plan = EnginePlan(widths=(1, 4), prefill=(256,))
    return Subject(
        config=checkpoint.config, weights=checkpoint.load(), programs=Programs(), plan=plan
    )


def test_a_small_model_is_measured_at_every_size(tiny: Subject) -> None:
    asked: list[tuple[int, int, int]] = []

    def dots(rows: int, width: int, regions: int) -> float:
        asked.append((rows, width, regions))
        return 1e9

    result = measure(
        *("tiny", tiny, lambda _: None),
        sizes=(32, 256, 1024),
        rounds=2,
        dots=dots,
        read_bytes=2**16,
    )
    assert asked == [(2, 32, 128)] * 3
    assert [size.positions for size in result.sizes] == [32, 256, 1024]
    for size in result.sizes:
        parts = (size.whole, size.sliding, size.attention, size.hot, size.scoring)
        assert all(len(part) == 2 and min(part) > 0 for part in parts)
    assert (len(result.read), len(result.dots)) == (2, 2)
    assert result.state_bytes == result.predicted_bytes
    # Three regions are all taken, thirty are scored.
    assert result.speed(result.sizes[0]) == 0
    assert result.speed(result.sizes[1]) > 0


def test_the_state_is_filled_and_operators_are_timed_in_a_step(tiny: Subject) -> None:
    engine = tiny.engine(1, options())
    fill(engine.state)
    for pool in engine.state.layers:
        assert pool.isfinite().all()
        assert pool.float().std() > 0.9
    for indexer in engine.state.indexers:
        if indexer is not None:
            rows = indexer.summary.float().flatten(0, 1)
            assert rows.isfinite().all()
            assert len(rows.unique(dim=0)) == len(rows)
    steps = Steps(engine, tiny, width=1)
    times = steps.operators(200)
    assert list(times) == [SCORING, ATTENTION, HOT]
    assert min(times.values()) > 0
    assert 0 < sum(times.values()) < 10 * steps.whole(200) + 1
    with torch.inference_mode():
        assert steps.sliding(200) > 0


def options() -> Options:
    return Options(widths=(1,), batches=(1,), prefix=256, steps=4)


def made_up(name: str, attention: float, scoring: float, *, state: int = 100) -> Result:
    config = synthetic_config(SMALL)  # 2 full layers, 32 bytes a summary, 2 heads
    sizes = [
        Size(
            positions=positions,
            whole=[9.0, 8.0, 10.0],
            sliding=[3.0] * 3,
            attention=[1.0 if positions < CONTEXT else attention] * 3,
            hot=[0.5] * 3,
            scoring=[scoring] * 3,
        )
        for positions in (8192, CONTEXT)
    ]
    return Result(
        name=name,
        config=config,
        sizes=tuple(sizes),
        read=(3.2e6, 9e9, 1e3),
        dots=(1e6, 2e5, 1e9),
        state_bytes=state,
        predicted_bytes=100,
        resident_bytes=103,
    )


def test_the_numbers_that_bars_judge() -> None:
    large, nano = made_up("large", 1.25, 4.0), made_up("nano", 1.0, 1.0, state=98)
    # Memory: 1e5 regions a second; dot products: 5e5.
    assert large.roof == 1e5
    regions = 2 * (CONTEXT - BACK) / 8
    assert numbers(large, nano) == pytest.approx(
        {
            "attention_1m_over_8k": 1.25,
            "scoring_of_roof": regions / 4 / 1e5,
            "state_error": 0.02,
            "nano_positions": CONTEXT,
        }
    )
    assert large.sizes[1].rest == pytest.approx(9 - 3 - 1.25 - 4)


def test_slow_dot_products_are_the_roof() -> None:
    result = made_up("large", 1.0, 1.0)
    slow = dataclasses.replace(result, dots=(4e4,))
    assert slow.roof == 2e4


def test_the_section_and_the_plot(tmp_path: Path) -> None:
    results = [made_up("large", 1.25, 4.0), made_up("nano", 1.0, 1.0)]
    path = plot(results, tmp_path / "plots" / "long.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    made = section(results, path)
    assert made.plots == ("plots/long.png",)
    assert [row[0] for row in made.tables[0].rows] == ["8,192", "1,048,576"]
    assert made.tables[0].rows[0][1] == "9000.000 (8000.000 to 10000.000)"
    assert made.tables[0].rows[1][3:5] == (
        "1250.000 (1250.000 to 1250.000)",
        "500.000 (500.000 to 500.000)",
    )
    assert made.tables[2].rows[0] == ("large", "0.0", "0.0", "1.0000", "0.0")
