"""The history ring: what was stored last at a position comes back, padding never does."""

import pytest
import torch
from torch import Tensor

from graphs.history import HISTORY, History, make_history, recall, remember
from graphs.rows import Rows, place_rows

HIDDEN, SLOTS = 4, 2
TABLE = torch.zeros(SLOTS + 1, 1, dtype=torch.int64)


def rows_at(slot: int, start: int, count: int, in_use: int | None = None) -> Rows:
    offset = torch.arange(count)
    used = None if in_use is None else (offset < in_use)[None]
    return place_rows(torch.tensor([slot]), (start + offset)[None], used, TABLE)


def marked(start: int, count: int, tag: int = 0) -> tuple[Tensor, Tensor]:
    """Hidden states and following tokens that name their position and the call."""
    value = torch.arange(start, start + count) + 10_000 * tag
    return value[:, None].expand(-1, HIDDEN).float(), value + 1


def filled(slot: int, start: int, count: int) -> History:
    history = make_history(SLOTS, HIDDEN, None)
    remember(history, rows_at(slot, start, count), *marked(start, count))
    return history


@pytest.mark.parametrize("start", [0, 5, HISTORY - 1, HISTORY, 1000])
@pytest.mark.parametrize("count", [1, 4, HISTORY])
def test_what_was_remembered_comes_back(start: int, count: int) -> None:
    found = recall(filled(1, start, count), rows_at(1, start, count))
    for one, other in zip(found, marked(start, count), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("start", [0, 5, 100])
@pytest.mark.parametrize("count", [HISTORY + 1, 2 * HISTORY, 2 * HISTORY + 3])
def test_of_more_rows_than_places_the_last_stay(start: int, count: int) -> None:
    last = start + count - HISTORY
    history = filled(0, start, count)
    assert history.ids[SLOTS].any(), "rows that would be overwritten were written elsewhere"
    found = recall(history, rows_at(0, last, HISTORY))
    for one, other in zip(found, marked(last, HISTORY), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("in_use", [1, 100, HISTORY, HISTORY + 1, 2 * HISTORY - 1])
def test_padding_behind_the_rows_leaves_them_alone(in_use: int) -> None:
    history = make_history(SLOTS, HIDDEN, None)
    remember(history, rows_at(0, 40, 2 * HISTORY, in_use), *marked(40, 2 * HISTORY))
    first = 40 + max(0, in_use - HISTORY)
    count = min(in_use, HISTORY)
    found = recall(history, rows_at(0, first, count))
    for one, other in zip(found, marked(first, count), strict=True):
        assert torch.equal(one, other)


def test_padding_goes_to_the_scratch_slot() -> None:
    history = make_history(SLOTS, HIDDEN, None)
    remember(history, rows_at(1, 3, 4, in_use=0), *marked(3, 4, tag=1))
    remember(history, rows_at(SLOTS, 3, 4), *marked(3, 4, tag=1))
    remember(history, rows_at(0, -4, 4), *marked(3, 4, tag=1))
    assert not history.ids[:SLOTS].any()
    assert not history.hidden[:SLOTS].any()
    assert history.hidden[SLOTS].any()


def test_slots_do_not_share_places() -> None:
    history = filled(0, 0, 8)
    remember(history, rows_at(1, 0, 8), *marked(0, 8, tag=1))
    for slot, tag in ((0, 0), (1, 1)):
        hidden, ids = recall(history, rows_at(slot, 0, 8))
        assert torch.equal(hidden, marked(0, 8, tag)[0])
        assert torch.equal(ids, marked(0, 8, tag)[1])


def test_a_rejected_row_is_overwritten_by_the_next_step() -> None:
    history = filled(0, 0, 8)
    remember(history, rows_at(0, 5, 4), *marked(5, 4, tag=1))
    hidden, ids = recall(history, rows_at(0, 3, 4))
    assert hidden[:, 0].tolist() == [3, 4, 10_005, 10_006]
    assert ids.tolist() == [4, 5, 10_006, 10_007]
