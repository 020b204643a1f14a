"""The predicted state against the engine's own, byte for byte, and what `inspect` says of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from graphs.checkpoint import Checkpoint
from graphs.footprint import footprint
from graphs.inspect import inspect_checkpoint
from graphs.plan import EnginePlan
from graphs.sku import state_cost
from graphs.synthetic import SMALL
from graphs.synthetic_weights import write_synthetic
from runtime.engine import Engine
from runtime.memory import Memory
from runtime.pools import PoolSizes
from runtime.programs import Programs
from tests.graphs import variants
from tests.graphs.variants import GOLDEN

NANO = Path(__file__).parents[2] / "models" / "step5-nano"


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic(folder, SMALL)
    return folder


def engine_of(folder: Path, context: int, slots: int = 1) -> Engine:
    checkpoint = Checkpoint.open(folder)
    return Engine(
        checkpoint.config,
        checkpoint.load(),
        programs=Programs(),
        plan=EnginePlan(batches=(slots,)),
        context=context,
        slots=slots,
    )


@pytest.mark.parametrize(("context", "slots"), [(1, 1), (100, 1), (4096, 1), (4093, 3), (2**20, 1)])
def test_nano_takes_what_inspect_says(context: int, slots: int) -> None:
    engine = engine_of(NANO, context, slots)
    report = inspect_checkpoint(Checkpoint.open(NANO), context=context, sequences=slots)
    [said] = report.sizes
    assert (said.context, said.sequences) == (context, slots)
    assert said.state == engine.state.nbytes


def test_so_do_a_synthetic_and_a_golden_model(synthetic: Path) -> None:
    for folder in (synthetic, GOLDEN / "nvfp4-packed"):
        for context, slots in ((500, 1), (1000, 4)):
            config = Checkpoint.open(folder).config
            found = footprint(config, context=context, sequences=slots).state
            assert found == engine_of(folder, context, slots).state.nbytes


def test_the_cost_of_a_block_counts_one_sequence_exactly() -> None:
    config = Checkpoint.open(NANO).config
    cost = state_cost(config)
    for blocks in (40, 1000, 16385):
        size = footprint(config, context=64 * blocks - 4).state
        assert size == cost.per_sequence + blocks * cost.per_block
        assert cost.tokens(size) == 64 * blocks - 4
        assert cost.tokens(size - 1) == 64 * (blocks - 1) - 4
    assert cost.tokens(0) == 0


def test_fp32_keys_take_twice_the_room() -> None:
    config = Checkpoint.open(NANO).config
    longer, shorter = (
        [footprint(config, context=size, dtype=kind).state for size in (64 * 101, 64 * 100)]
        for kind in (torch.float32, torch.bfloat16)
    )
    kv = 64 * 2 * 2 * 2 * 48 * 2  # a block of both full layers
    assert (longer[0] - longer[1]) - (shorter[0] - shorter[1]) == kv


def test_tails_are_those_of_the_prefix_cache() -> None:
    engine = engine_of(NANO, 1000)
    sizes = PoolSizes(full=16, sliding=20)
    memory = Memory(engine.state, engine.config, sizes, depths=3, reach=0, largest_call=260)
    said = footprint(engine.config, context=1000)
    held = memory._tails
    assert said.tails == held.nbytes


def test_the_usual_contexts_are_counted_without_being_asked(tmp_path: Path) -> None:
    report = inspect_checkpoint(Checkpoint.open(NANO))
    assert [size.context for size in report.sizes] == [4096, 32768, 262144, 1048576]
    short = variants.copy(tmp_path / "short", "bf16")
    for positions, counted in ((5000, [4096]), (300, [300])):
        variants.edit_config(short, lambda c, n=positions: limit(c, n))
        sizes = inspect_checkpoint(Checkpoint.open(short)).sizes
        assert [size.context for size in sizes] == counted


def limit(config: dict[str, Any], positions: int) -> None:
    for section in (config, config.get("text_config", {})):
        for name in ("max_seq_len", "max_position_embeddings"):
            if name in section:
                section[name] = positions


@pytest.mark.parametrize(
    ("context", "sequences", "words"),
    [(2**20 + 1, 1, "1048576 positions"), (0, 1, "context = 0"), (10, 0, "sequences = 0")],
)
def test_what_the_model_cannot_hold_is_refused(context: int, sequences: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        inspect_checkpoint(Checkpoint.open(NANO), context=context, sequences=sequences)
