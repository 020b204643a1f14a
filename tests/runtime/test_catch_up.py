"""Which rows to run over again: each once, and none left out that a draft depends on."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.config import ModelConfig
from graphs.draft_blocks import LOOKED
from graphs.history import HISTORY
from graphs.plan import MAX_WIDTH
from runtime.catch_up import CatchUp
from tests.graphs.random_model import random_model


def config_of(window: int | None, layers: int = 3) -> ModelConfig:
    config = random_model("one group, one MTP layer", seed=2).config
    layer = dataclasses.replace(config.mtp_layers[0], window=window)
    return dataclasses.replace(config, mtp_layers=(layer,) * layers)


def test_a_draft_sees_a_window_of_windows() -> None:
    """Each row of the last depth is made of a window of the depth before it."""
    made = CatchUp.of(config_of(64), 3, (32,))
    assert (made.reach, made.limit) == (LOOKED + 3 * 63, None)
    assert CatchUp.of(config_of(64), 1, (32,)).reach == LOOKED + 63


@pytest.mark.parametrize("window", [512, None])
def test_a_longer_reach_must_be_run_over_before_the_history_forgets(window: int | None) -> None:
    made = CatchUp.of(config_of(window), 3, (16, 32))
    most = HISTORY - MAX_WIDTH - 2 - 32
    assert made.limit == made.reach == most
    with pytest.raises(AssertionError, match="forgotten"):
        made.pieces(1000, most + 1)


@given(
    st.sets(st.integers(1, 64), min_size=1, max_size=4).map(sorted),
    st.integers(1, 600),
    st.integers(1, 200),
)
def test_pieces_join_and_end_at_the_end(sizes: list[int], rows: int, reach: int) -> None:
    made = CatchUp(sizes=tuple(sizes), reach=reach, limit=None)
    pieces = made.pieces(1000, rows)
    covered = [row for piece in pieces for row in range(piece.end - piece.rows + 1, piece.end + 1)]
    assert covered == list(range(1000 - min(rows, reach) + 1, 1001))
    assert all(piece.rows <= piece.size and piece.size in sizes for piece in pieces)
    assert all(piece.rows == sizes[-1] for piece in pieces[1:])
