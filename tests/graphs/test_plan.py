"""Plans: which sizes serve a need, and which plans are refused."""

import pytest

from graphs.history import HISTORY
from graphs.plan import EnginePlan, smallest


@pytest.mark.parametrize("prefill", [(16, 64, 256), (1,), (7,), (4, 6), (3, 100)])
def test_chunks_cover_any_prompt_with_little_padding(prefill: tuple[int, ...]) -> None:
    plan = EnginePlan(prefill=prefill)
    for tokens in range(1, 700):
        sizes = plan.chunks(tokens)
        assert set(sizes) <= set(prefill)
        assert sizes == sorted(sizes, reverse=True)
        assert sum(sizes[:-1]) < tokens <= sum(sizes)
        padding = sum(sizes) - tokens
        assert sizes[-1] == prefill[0] or padding < sizes[-1] / 2


@pytest.mark.parametrize(
    ("tokens", "sizes"),
    [
        *((0, []), (1, [16]), (16, [16]), (17, [16, 16]), (32, [16, 16]), (33, [64])),
        *((64, [64]), (128, [64, 64]), (129, [256]), (256, [256]), (257, [256, 16])),
        (256 + 33, [256, 64]),
    ],
)
def test_chunks_cover_with_little_padding(tokens: int, sizes: list[int]) -> None:
    assert EnginePlan(prefill=(16, 64, 256)).chunks(tokens) == sizes


def test_the_smallest_context_that_is_large_enough() -> None:
    plan = EnginePlan(contexts=(10, 20))
    assert [plan.context_for(n) for n in (1, 10, 11, 20)] == [10, 10, 20, 20]
    with pytest.raises(ValueError, match=r"context 21 is more than .* built for: \[10, 20\]"):
        plan.context_for(21)


def test_what_no_size_serves_is_named() -> None:
    with pytest.raises(ValueError, match=r"^batch 5 is more than .*: \[1, 4\]$"):
        smallest((1, 4), 5, "batch")


def test_layers_catch_up_within_what_the_history_holds() -> None:
    plan = EnginePlan(prefill=(16, 64, 65, 256))
    assert plan.observed == (16, 64)
    assert EnginePlan(prefill=(128, 256)).observed == (64,)
    assert max(plan.observed) <= HISTORY // 2  # less a window and the rows that are run again


@pytest.mark.parametrize("field", ["widths", "batches", "contexts", "prefill"])
@pytest.mark.parametrize("values", [(), (0,), (-1, 2), (2, 1), (1, 1)])
def test_a_plan_is_of_rising_positive_numbers(field: str, values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"^{field} = .*rising positive"):
        EnginePlan(**{field: values})


def test_a_step_verifies_four_positions_at_most() -> None:
    with pytest.raises(ValueError, match=r"^widths = \[1, 5\]: at most 4"):
        EnginePlan(widths=(1, 5))
