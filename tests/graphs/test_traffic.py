"""Bytes of a step against sums written out by hand, and the rules that no sum shows."""

from pathlib import Path

import pytest

from graphs.checkpoint import Checkpoint
from graphs.config import ModelConfig
from graphs.synthetic import SMALL, SyntheticDims, synthetic_config
from graphs.synthetic_weights import write_synthetic
from graphs.traffic import Load, Reads, decode_reads, expected_distinct, step_bytes
from graphs.weights import ModelWeights
from tests.graphs.meta_weights import meta_weights

DIMS = SyntheticDims()
CONFIG = synthetic_config(DIMS)
WEIGHTS = meta_weights(CONFIG)


def reads(load: Load, distinct: list[float] | None = None) -> dict[str, Reads]:
    return {part.kind: part for part in decode_reads(CONFIG, WEIGHTS, load, distinct)}


ATTENTION = 2 * 1024 * (16 * 192 + 192 + 192 + 16 + 16 * 192) + 4 * 2 * 192
NORMS = 4 * 2 * 1024
DENSE = 2 * 3 * 1152 * 1024
SHARED = 2 * 3 * 384 * 1024
ROUTER = 4 * (64 * 1024 + 64)
EXPERT = 3 * (384 * 1024 // 2 + 384 * 1024 // 16 + 4)
# Below the 512 regions that fit: keys, z, their norm and the unused ssmax_s.
INDEXER = 2 * 2 * 256 * 1024 + 4 * 2 * 256 + 4 * 16
SCORING = 2 * 4 * 256 * 1024 + 4 * 4 * 1024 + 4 * 256
HEAD = 2 * 8192 * 1024
KEY = 2 * 2 * 192


def test_one_row_of_the_default_model() -> None:
    parts = reads(Load(width=1, positions=(600,)))
    assert list(parts) == [
        *("embedding", "sliding + dense", "full + moe", "sliding + moe", "full + dense", "head")
    ]
    assert parts["embedding"].fixed == 2 * 1024
    layer = ATTENTION + NORMS
    assert parts["sliding + dense"].count == 3
    assert parts["sliding + dense"].fixed == 3 * (layer + DENSE)
    assert parts["sliding + dense"].cache == 3 * 511 * KEY
    assert parts["full + moe"].fixed == 5 * (layer + INDEXER + ROUTER + SHARED)
    assert parts["full + moe"].experts == 5 * 8 * EXPERT
    assert parts["full + moe"].cache == 5 * 600 * KEY
    assert parts["sliding + moe"].fixed == 15 * (layer + ROUTER + SHARED)
    assert parts["full + dense"].fixed == layer + INDEXER + DENSE
    assert parts["head"].fixed == HEAD + 4 * 1024
    total = step_bytes(parts.values())
    assert 525e6 < total < 545e6, "the size that the bars were set for"


def test_four_rows_share_weights_and_add_experts_and_the_chain() -> None:
    one = reads(Load(width=1, positions=(600,)))
    four = reads(Load(width=4, positions=(600,), depths=3))
    for kind in ("sliding + dense", "full + dense", "head"):
        assert four[kind] == one[kind]
    assert four["sliding + moe"].fixed == one["sliding + moe"].fixed
    assert four["sliding + moe"].experts == pytest.approx(15 * 64 * (1 - (7 / 8) ** 4) * EXPERT)
    block = ATTENTION + NORMS + DENSE + 2 * 2 * 1024 * 1024 + 4 * 3 * 1024 + HEAD
    assert four["MTP layers"].count == 3
    assert four["MTP layers"].fixed == 3 * (block + 4 * 2 * 1024)
    assert four["MTP layers"].cache == 3 * 511 * KEY
    share = four["MTP layers"].total / step_bytes(four.values())
    assert 0.08 < share < 0.15


def test_counted_experts_take_the_place_of_the_mean() -> None:
    distinct = [float(8 + n) for n in range(20)]
    parts = reads(Load(width=2, positions=(5,)), distinct)
    total = parts["sliding + moe"].experts + parts["full + moe"].experts
    assert total == sum(distinct) * EXPERT
    full = [distinct[n - 3] for n in (3, 7, 11, 15, 19)]
    assert parts["full + moe"].experts == sum(full) * EXPERT
    with pytest.raises(ValueError, match="19 entries for 20"):
        reads(Load(width=2, positions=(5,)), distinct[1:])


def test_slots_add_their_caches_and_share_the_weights() -> None:
    both = reads(Load(width=1, positions=(100, 300)))
    one, other = (reads(Load(width=1, positions=(p,))) for p in (100, 300))
    for kind in ("sliding + dense", "full + dense"):
        assert both[kind].fixed == one[kind].fixed
        assert both[kind].cache == one[kind].cache + other[kind].cache
    assert both["embedding"].fixed == 2 * one["embedding"].fixed


@pytest.mark.parametrize(("position", "scored"), [(4103, False), (4104, True), (20000, True)])
def test_scoring_is_read_where_regions_have_to_be_chosen(position: int, scored: bool) -> None:
    layer = reads(Load(width=1, positions=(position,)))["full + dense"]
    fixed = ATTENTION + NORMS + INDEXER + DENSE
    assert layer.fixed == fixed + (SCORING if scored else 0)
    seen = min(position, 512 * 8 + position % 8)
    assert layer.cache == seen * KEY + (position // 8 * 256 if scored else 0)


def test_a_later_row_of_the_step_may_be_the_one_that_scores() -> None:
    layer = reads(Load(width=2, positions=(4103,)))["full + dense"]
    assert layer.fixed == ATTENTION + NORMS + INDEXER + DENSE + SCORING


def test_uniform_choices() -> None:
    assert expected_distinct(CONFIG, 1) == pytest.approx(8)
    assert expected_distinct(CONFIG, 2) == pytest.approx(15)
    assert expected_distinct(CONFIG, 1000) == pytest.approx(64)


def test_loaded_tensors_count_as_the_shapes_say(tmp_path: Path) -> None:
    config: ModelConfig = write_synthetic(tmp_path, SMALL)
    loaded: ModelWeights = Checkpoint.open(tmp_path).load()
    load = Load(width=3, positions=(40, 7), depths=2)
    expected = decode_reads(config, meta_weights(config), load)
    assert decode_reads(config, loaded, load) == expected
