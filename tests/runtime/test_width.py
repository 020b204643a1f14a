"""The width policy: from costs and acceptance to a width, and what it costs to be wrong.

Whole texts are simulated on a cost table, with an engine that only counts: drafts that are always
wrong, always right, and both in turn.
"""

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from graphs.draft_blocks import LOOKED
from graphs.manifest import Costs
from runtime.catch_up import CatchUp
from runtime.width import (
    FIRST_LOOK,
    LOOK_SHARE,
    MARGIN,
    PRIOR_WEIGHT,
    RATE,
    AutoWidth,
    FixedWidth,
    StepCosts,
    WidthPolicy,
)

# Proportions of a model whose steps read memory: wider costs little, drafting a tenth.
TABLE = Costs(
    verify={"1x1": 1000.0, "1x2": 1060.0, "1x3": 1110.0, "1x4": 1150.0, "4x1": 1300.0},
    draft={"1x1": 110.0, "1x2": 112.0, "1x3": 114.0, "1x4": 116.0, "4x1": 120.0},
    observe={"16": 130.0, "64": 220.0},
    acceptance=(0.6, 0.5, 0.4),
)
CATCH_UP = CatchUp(sizes=(16, 64), reach=150, limit=None)


def costs_of(batch: int, draft_tokens: int, table: Costs = TABLE) -> StepCosts:
    return StepCosts.of(table, batch=batch, draft_tokens=draft_tokens, catch_up=CATCH_UP)


COSTS = costs_of(1, 3)


def policy_of(*rates: float, costs: StepCosts = COSTS) -> AutoWidth:
    return AutoWidth(tables={1: costs}, rates=list(rates))


def test_costs_of_a_batch() -> None:
    assert COSTS.plain == 1000
    assert list(COSTS.drafted) == [1172, 1224, 1266]
    assert costs_of(4, 0).plain == 1300
    assert list(costs_of(1, 2).drafted) == [1172, 1224]


def test_costs_of_looking() -> None:
    found = [COSTS.looking(rows) for rows in (1, 16, 17, 64, 65, 128, 129, 150, 1000)]
    assert found == [130, 130, 220, 220, 350, 440, 570, 660, 660]


def test_a_width_that_was_not_built_costs_what_the_next_one_does() -> None:
    table = Costs(
        verify={"1x2": 5.0, "1x4": 9.0}, draft={"1x2": 1.0, "1x4": 2.0}, observe={}, acceptance=()
    )
    blind = CatchUp(sizes=(), reach=150, limit=None)
    costs = StepCosts.of(table, batch=1, draft_tokens=3, catch_up=blind)
    assert (costs.plain, list(costs.drafted), costs.look) == (5.0, [6.0, 11.0, 11.0], [])


def test_a_model_that_was_not_timed_needs_a_fixed_width() -> None:
    empty = Costs(verify={}, draft={}, observe={}, acceptance=())
    with pytest.raises(ValueError, match="--spec-tokens"):
        costs_of(1, 3, empty)


@pytest.mark.parametrize(
    ("rates", "drafts"),
    [
        ((0.0, 0.0, 0.0), 0),
        ((1.0, 1.0, 1.0), 3),
        ((0.9, 0.0, 0.0), 1),
        ((0.9, 0.9, 0.0), 2),
        ((0.0, 1.0, 1.0), 0),  # a wrong first draft wastes the others
        ((0.15, 0.1, 0.1), 0),  # 1.15 tokens for 1172 are less than 1 for 1000
        ((0.25, 0.01, 0.0), 1),
    ],
)
def test_the_width_with_most_tokens_for_the_time_is_chosen(
    rates: tuple[float, ...], drafts: int
) -> None:
    assert policy_of(*rates).drafts() == drafts


def test_drafting_must_promise_more_than_its_margin() -> None:
    even = 1172 / 1000 * MARGIN - 1
    assert policy_of(even - 1e-6, 0, 0).drafts() == 0
    assert policy_of(even + 1e-6, 0, 0).drafts() == 1


def test_verified_drafts_move_the_rates_of_positions_that_were_reached() -> None:
    policy = policy_of(0.5, 0.5, 0.5)
    policy.verified(3, 1)
    first = 0.5 / (1 + PRIOR_WEIGHT)
    assert policy.rates == pytest.approx([0.5 + first, 0.5 - first, 0.5])
    policy = policy_of(0.5, 0.5, 0.5)
    policy.verified(3, 3)
    assert policy.rates == pytest.approx([0.5 + first] * 3)
    policy = policy_of(0.5, 0.5, 0.5)
    policy.verified(0, 0)
    assert policy.rates == [0.5, 0.5, 0.5]


def test_a_request_soon_has_rates_of_its_own_and_then_follows_its_text() -> None:
    policy = policy_of(0.5, 0.5, 0.5)
    for right in (0, 1, 1, 0, 1, 1):
        policy.verified(1, right)
    assert policy.rates[0] == pytest.approx((0.5 * PRIOR_WEIGHT + 4) / (PRIOR_WEIGHT + 6))
    for _ in range(200):
        policy.verified(1, 0)
    before = policy.rates[0]
    policy.verified(1, 1)
    assert policy.rates[0] == pytest.approx(before + RATE * (1 - before))


def test_a_draft_that_nobody_verifies_is_tried_again() -> None:
    """Where those before it are right it may be right too, whatever was thought of it."""
    policy = policy_of(1.0, 1.0, 0.01)
    steps = 0
    while policy.drafts() == 2 and steps < 100:
        policy.verified(2, 2)
        steps += 1
    assert policy.drafts() == 3
    assert 30 < steps < 80
    thought = policy.rates[2]
    policy.verified(2, 1)
    assert policy.rates[2] == thought, "no draft behind a wrong one is thought better of"
    policy = policy_of(0.4, 0.4, 0.9)
    policy.verified(2, 2)
    assert policy.rates[2] == 0.9


def test_observing_is_as_many_verifications() -> None:
    seen, one_by_one = policy_of(0.3, 0.2, 0.1), policy_of(0.3, 0.2, 0.1)
    seen.observed((9, 0, 0), (9, 8, 0))
    for _ in range(9):
        one_by_one._learn(0, 1.0, 1)
    for _ in range(8):
        one_by_one._learn(1, 0.0, 1)
    assert seen.rates == pytest.approx(one_by_one.rates)


def looks_of(policy: AutoWidth, steps: int) -> list[int]:
    """Rows between looks of so many plain steps, if all of them find nothing."""
    unseen, looks = 0, list[int]()
    for _ in range(steps):
        policy.verified(0, 0)
        unseen += 1
        if policy.looks(unseen):
            looks.append(unseen)
            unseen = 0
            policy.observed((0, 0, 0), (7, 6, 5))
    return looks


@pytest.mark.parametrize("dear", [1, 5, 20])
def test_looks_cost_their_share_whatever_one_costs(dear: float) -> None:
    costs = dataclasses.replace(COSTS, look=[dear * cost for cost in COSTS.look])
    policy = policy_of(0.0, 0.0, 0.0, costs=costs)
    looks = looks_of(policy, 5000)
    assert looks[0] == FIRST_LOOK
    assert len(looks) > 3
    cost = sum(costs.looking(rows) for rows in looks)
    assert cost <= LOOK_SHARE * 5000 * COSTS.plain + costs.looking(FIRST_LOOK)


def test_a_look_is_not_put_off_until_the_history_forgets() -> None:
    dear = dataclasses.replace(COSTS, look=[1e9])
    assert looks_of(policy_of(0.0, 0.0, 0.0, costs=dear), 350) == [16]
    forgets = dataclasses.replace(dear, limit=100)
    assert looks_of(policy_of(0.0, 0.0, 0.0, costs=forgets), 350) == [16, 100, 100, 100]


def test_where_no_engine_observes_there_is_no_look() -> None:
    blind = dataclasses.replace(COSTS, look=[])
    assert looks_of(policy_of(0.0, 0.0, 0.0, costs=blind), 100) == []


def test_a_fixed_width_learns_nothing() -> None:
    for count in range(4):
        policy = FixedWidth(count=count)
        policy.verified(3, 0)
        policy.observed((0,), (9,))
        assert (policy.drafts(), policy.looks(100)) == (count, False)


Right = Callable[[int, int], bool]


def always(_token: int, _depth: int) -> bool:
    return True


def wrong(_token: int, _depth: int) -> bool:
    return False


def simulate(
    policy: WidthPolicy, tokens: int, right: Right, table: Costs = TABLE
) -> tuple[float, list[int]]:
    """(cost, drafts asked for at each step) of a text. Draft d of token t is right if right(t, d),
    which observations take to be as at the text's end."""
    cost, done, unseen, fresh = 0.0, 1, 0, True
    asked: list[int] = []
    while done < tokens:
        wanted = policy.drafts()
        count = wanted if fresh else 0
        drafting = wanted > 0 and unseen == 0
        shape = f"1x{1 + count}"
        cost += table.verify[shape] + (table.draft[shape] if drafting else 0)
        accepted = 0
        while accepted < count and right(done + accepted, accepted):
            accepted += 1
        policy.verified(count, accepted)
        done += 1 + accepted
        asked.append(count)
        fresh = drafting
        if drafting:
            continue
        unseen += 1 + accepted
        if wanted or policy.looks(unseen):
            cost += COSTS.looking(unseen)
            trials = [max(0, min(unseen, LOOKED) - 1 - depth) for depth in range(3)]
            policy.observed([t * right(done - 1, d) for d, t in enumerate(trials)], trials)
            unseen, fresh = 0, True
    return cost, asked


def fixed(tokens: int, right: Right) -> list[float]:
    """Cost by number of drafts."""
    return [simulate(FixedWidth(count=k), tokens, right)[0] for k in range(4)]


PRIORS: list[Sequence[float]] = [(0.05, 0.05, 0.05), (0.35, 0.26, 0.05), (0.6, 0.5, 0.4)]


@pytest.mark.parametrize("prior", PRIORS)
def test_always_wrong_drafts_cost_at_most_three_percent(prior: Sequence[float]) -> None:
    plain = fixed(600, wrong)[0]
    found, asked = simulate(policy_of(*prior), 600, wrong)
    assert found <= 1.03 * plain
    assert asked[-1] == 0


@pytest.mark.parametrize("prior", PRIORS)
def test_always_right_drafts_are_used_within_three_percent(prior: Sequence[float]) -> None:
    best = min(fixed(4000, always))
    found, asked = simulate(policy_of(*prior), 4000, always)
    assert found <= 1.03 * best
    assert asked[-1] == 3


def test_a_text_that_changes_is_followed_both_ways() -> None:
    def right(token: int, _depth: int) -> bool:
        return token // 500 % 2 == 0

    found, asked = simulate(policy_of(*PRIORS[2]), 4000, right)
    changes = [i for i in range(1, len(asked)) if (asked[i] == 0) != (asked[i - 1] == 0)]
    assert len(changes) >= 7
    # Half of the text by fours, the other half plainly.
    assert found < 1.06 * (2000 / 4 * COSTS.drafted[2] + 2000 * COSTS.plain)
    assert found < min(fixed(4000, right))


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_that_are_always_wrong_are_hardly_ever_verified(depth: int) -> None:
    """Where only the first drafts are ever right, their number is chosen; the rest is tried."""

    def right(_token: int, place: int) -> bool:
        return place < depth

    for prior in PRIORS:
        found, asked = simulate(policy_of(*prior), 4000, right)
        assert found <= 1.03 * min(fixed(4000, right))
        late = asked[-400:]
        assert late.count(depth) > 0.7 * len(late)
