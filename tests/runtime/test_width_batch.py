"""The width of a step that several requests share: one number of drafts, the best for all."""

import dataclasses

from runtime.width import FIRST_LOOK, AutoWidth, FixedWidth, StepCosts, agree
from tests.runtime.test_width import COSTS, looks_of

TOGETHER = StepCosts(plain=1300, drafted=[2300, 2500, 2700], look=COSTS.look, limit=None)


def auto(*rates: float, batched: StepCosts = TOGETHER) -> AutoWidth:
    return AutoWidth(tables={1: COSTS, 2: batched}, rates=list(rates))


def test_a_batch_verifies_what_is_best_for_all_of_it() -> None:
    """Alone one would draft and the other would not; in one step it takes as long for both."""
    right, wrong = auto(1.0, 1.0, 1.0), auto(0.0, 0.0, 0.0)
    assert (right.drafts(), wrong.drafts()) == (3, 0)
    agree([right, wrong], (2,))
    assert (right.drafts(), wrong.drafts()) == (3, 3)  # 5 tokens for 2700, not 2 for 1300
    dear = dataclasses.replace(TOGETHER, drafted=[9000, 9000, 9000])
    right, wrong = auto(1.0, 1.0, 1.0, batched=dear), auto(0.0, 0.0, 0.0, batched=dear)
    agree([right, wrong], (2,))
    assert (right.drafts(), wrong.drafts()) == (0, 0)
    agree([right], (1,))
    assert right.drafts() == 3, "alone again"


def test_what_a_fixed_number_costs_anyway_is_free_for_the_others() -> None:
    poor = auto(0.1, 0.1, 0.0)
    agree([poor], (2,))
    assert poor.drafts() == 0
    agree([poor, FixedWidth(count=2)], (2,))
    assert poor.drafts() == 2
    agree([FixedWidth(count=2)], (2,))


def test_a_look_is_saved_up_for_by_all_that_share_a_step() -> None:
    alone, shared = auto(0.0, 0.0, 0.0, batched=COSTS), auto(0.0, 0.0, 0.0, batched=COSTS)
    agree([shared, auto(0.0, 0.0, 0.0, batched=COSTS)], (2,))
    assert len(looks_of(alone, 4000)) > 1.5 * len(looks_of(shared, 4000))


def test_the_first_look_is_shared_as_well() -> None:
    """Else eight short answers that begin together look eight times where one looks once."""
    dear = dataclasses.replace(COSTS, look=[20 * cost for cost in COSTS.look])
    looks = []
    for size in (1, 2):
        policy = AutoWidth(tables={1: dear, 2: dear}, rates=[0.0] * 3)
        agree([policy], (size,))
        looks.append(looks_of(policy, FIRST_LOOK + 4))
    assert looks == [[FIRST_LOOK], []]
