"""Rows: entries of a batch flattened, and everything that is padding sent to the scratch slot."""

import torch

from graphs.rows import Rows, fill_rows, place_rows

TABLE = torch.zeros(3 + 1, 5, dtype=torch.int64)  # three slots and the scratch one


def place(
    slots: list[int], positions: list[list[int]], in_use: list[list[bool]] | None = None
) -> Rows:
    used = None if in_use is None else torch.tensor(in_use)
    return place_rows(torch.tensor(slots), torch.tensor(positions), used, TABLE)


def as_lists(rows: Rows) -> tuple[list[int], list[int], list[bool]]:
    return rows.slot.tolist(), rows.position.tolist(), rows.valid.tolist()


def test_rows_of_an_entry_are_neighbours() -> None:
    rows = place([2, 0], [[7, 8], [0, 1]])
    assert as_lists(rows) == ([2, 2, 0, 0], [7, 8, 0, 1], [True] * 4)


def test_rows_not_in_use_go_to_the_scratch_slot_at_position_0() -> None:
    rows = place([2, 0], [[7, 8], [5, 6]], [[True, False], [True, True]])
    assert as_lists(rows) == ([2, 3, 0, 0], [7, 0, 5, 6], [True, False, True, True])


def test_rows_before_the_start_are_padding() -> None:
    assert as_lists(place([1], [[-2, -1, 0]])) == ([3, 3, 1], [0, 0, 0], [False, False, True])


def test_entries_without_a_slot_are_padding() -> None:
    for slot in (3, 4, -1):
        assert as_lists(place([slot], [[4, 5]])) == ([3, 3], [0, 0], [False, False])


def test_filling_keeps_the_buffer() -> None:
    buffer, rows = place([0], [[0, 1]]), place([2], [[-1, 6]])
    kept = (buffer.slot, buffer.position, buffer.valid)
    fill_rows(buffer, rows)
    now = (buffer.slot, buffer.position, buffer.valid)
    assert all(one is other for one, other in zip(now, kept, strict=True))
    assert as_lists(buffer) == as_lists(rows) == ([3, 2], [0, 6], [False, True])
