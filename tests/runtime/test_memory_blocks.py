"""What slots have of the pools: bounded, mapped where it is read, kept for who comes back.

Texts whose MTP layers skipped rows, that grow past windows and blocks, and that hardly fit. Keeps
true: what a text goes on from drafts as a cold run does, token by token.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from runtime.answer import Answer
from runtime.pools import PoolSizes
from runtime.request import SamplingParams
from runtime.scheduler import Scheduler
from runtime.width import FixedWidth, StepCosts, WidthPolicy
from tests.runtime.machine import CONTEXT, NARROW, ROOMY, WIDE, Machine, Said, engine_of, tokens

SAMPLED = SamplingParams(max_tokens=24, temperature=1.0)


class Toggling(FixedWidth):
    """Plain and drafting by turns of any length, looking now and then."""

    def __init__(self, most: int, seed: int) -> None:
        super().__init__(count=most)
        self._dice, self._now, self._left = Random(seed), 0, 0

    def drafts(self) -> int:
        if self._left == 0:
            self._left = self._dice.choice((1, 3, 10, 50))
            self._now = self._dice.choice((0, 0, *range(1 + self.count)))
        self._left -= 1
        return self._now

    def looks(self, unseen: int) -> bool:
        return self._dice.random() < 0.03


def toggle(machine: Machine, seed: int) -> None:
    most = machine.engine.draft_tokens

    def policy(drafts: int | None) -> WidthPolicy:
        return Toggling(most, seed) if drafts is None else FixedWidth(count=drafts)

    vars(machine.scheduler)["_policy"] = policy


def check_reuse(machine: Machine, text: Sequence[int]) -> list[int]:
    """Texts that go on from this one at any block find the rows of cold ones, and draft as these;
    how much they reused."""
    most, reused = machine.engine.draft_tokens, list[int]()
    asked = [[*text[:cut], *tokens(3, cut)] for cut in (*range(66, len(text), 64), len(text))]
    warm = [ask_and_check(machine, prompt, most) for prompt in reversed(asked)]
    for prompt, said in zip(reversed(asked), warm, strict=True):
        assert said.end is not None
        reused.append(said.end.numbers.cached_tokens)
        machine.memory.cache.clear()
        assert said.steps == machine.ask(prompt, SAMPLED, draft_tokens=most).steps
    return reused


def ask_and_check(machine: Machine, prompt: Sequence[int], drafts: int) -> Said:
    """As Machine.ask, with a look at the rows that the prompt was found to have."""
    name = machine.submit(prompt, SAMPLED, draft_tokens=drafts)
    machine.step()
    [answer] = machine.live
    machine.check_rows(answer)
    machine.run()
    return machine.said[name, 0]


@pytest.mark.parametrize("shape", [NARROW, WIDE])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_toggling_answer_leaves_is_as_good_as_a_cold_run(shape: str, seed: int) -> None:
    machine = Machine(shape)
    toggle(machine, seed)
    prompt, params = tokens(70, seed), SamplingParams(max_tokens=250, temperature=1.0)
    said = machine.ask(prompt, params)
    assert {len(step.drafted) for step in said.steps} >= {0, 1}
    assert max(check_reuse(machine, prompt + said.tokens)) >= 64


@pytest.mark.parametrize("tokens_said", [100, 101, 130, 250])
def test_rows_that_the_mtp_layers_left_out_are_not_cached(
    tokens_said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that decodes plainly looks at its own pace, here once after more rows than matter,
    at the very end of an answer too."""
    machine, skipped = Machine(NARROW), list[int]()
    # A look in 45 steps is what may be spent.
    costs = StepCosts(plain=1.0, drafted=[9.0] * 3, look=[0.015 * 45] * 40, limit=None)
    machine.run_by(
        Scheduler(
            engine_of(NARROW, slots=4, pools=ROOMY),
            costs=dict.fromkeys((1, 2, 4), costs),
            prior=[0.1] * 3,
            clock=lambda: machine.now,
        )
    )
    note = machine.memory.skipped

    def noted(slot: int, end: int) -> None:
        skipped.append(end)
        note(slot, end)

    monkeypatch.setattr(machine.memory, "skipped", noted)
    prompt = tokens(40)
    said = machine.ask(prompt, SamplingParams(max_tokens=tokens_said, temperature=1.0))
    assert skipped
    check_reuse(machine, prompt + said.tokens)


class Scripted(FixedWidth):
    """Drafts for so many steps and then never again; looks after so many rows without."""

    def __init__(self, steps: int, look: int) -> None:
        super().__init__(count=0)
        self._steps, self._look = steps, look

    def drafts(self) -> int:
        self._steps -= 1
        return int(self._steps >= 0)

    def looks(self, unseen: int) -> bool:
        return unseen == self._look


def scripted(machine: Machine, steps: int, look: int) -> None:
    def policy(drafts: int | None) -> WidthPolicy:
        return FixedWidth(count=drafts) if drafts else Scripted(steps, look)

    vars(machine.scheduler)["_policy"] = policy


def test_a_look_in_the_last_step_that_left_rows_out_is_known() -> None:
    """It runs over rows from a little before a block's end on."""
    machine = Machine(NARROW)
    assert machine.engine.catch_up.reach == 32
    scripted(machine, steps=0, look=126)
    prompt = tokens(30)
    said = machine.ask(prompt, SamplingParams(max_tokens=127, temperature=1.0))
    check_reuse(machine, prompt + said.tokens)


def test_rows_that_the_mtp_layers_have_not_seen_are_not_cached() -> None:
    machine, prompt = Machine(NARROW), tokens(60)
    said = machine.ask(prompt, SamplingParams(max_tokens=80, temperature=1.0), draft_tokens=0)
    check_reuse(machine, prompt + said.tokens)


@pytest.mark.parametrize("shared", [0, 64])
def test_rows_of_a_prompt_that_were_left_out_are_made_up_for(shared: int) -> None:
    """Behind another text's block too, whose last rows have seen that text's next tokens."""
    machine, other = Machine(WIDE), tokens(70, 3)
    machine.ask(other, SAMPLED)
    scripted(machine, steps=0, look=20)
    prompt = [*other[:shared], *tokens(9, 5)]
    name = machine.submit(prompt, SamplingParams(max_tokens=80, temperature=1.0))
    machine.step()
    [answer] = machine.live
    assert answer.numbers.cached_tokens == shared
    assert answer.decoding.unseen
    while answer.decoding.unseen:
        machine.step()
    machine.check_rows(answer)
    machine.run()
    check_reuse(machine, prompt + machine.said[name, 0].tokens)


@pytest.mark.parametrize("count", [1, 2])
def test_no_drafts_are_made_behind_a_prompt_where_its_step_verifies_none(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its last chunk alone: the MTP layers make up for no more."""
    machine, chunks = Machine(NARROW), set[tuple[bool, bool]]()
    cheap, dear = (StepCosts(plain=1, drafted=[cost] * 3, look=[], limit=None) for cost in (1, 99))
    engine = engine_of(NARROW, slots=4, pools=ROOMY)
    costs = {1: cheap, 2: dear, 4: dear}
    machine.run_by(Scheduler(engine, costs=costs, prior=[0.5] * 3, clock=lambda: machine.now))
    load = machine.engine.prefill_chunk

    def noted(prompt: list[int], start: int, rows: int, *more: Any, draft: bool) -> object:
        chunks.add((start + rows >= len(prompt), draft))
        return load(prompt, start, rows, *more, draft=draft)

    monkeypatch.setattr(machine.engine, "prefill_chunk", noted)
    for seed in range(count):
        machine.submit(tokens(80, seed), SAMPLED)
    machine.run()
    assert chunks == {(False, True), (True, count == 1)}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_answer_that_stops_drafting_near_a_blocks_end_leaves_no_draft_there(steps: int) -> None:
    """Its rows before the end looked ahead to drafts; texts that go on do not read them."""
    machine = Machine(WIDE)
    scripted(machine, steps=steps, look=-1)
    prompt = tokens(62)
    text = prompt + machine.ask(prompt, SamplingParams(max_tokens=9, temperature=1.0)).tokens
    name = ""
    for _ in range(2):
        name = machine.submit([*text, *tokens(190 - len(text), 5)], SAMPLED, draft_tokens=2)
        machine.step()
        [answer] = machine.live
        machine.check_rows(answer)
        machine.run()
    end = machine.said[name, 0].end
    assert end is not None
    assert end.numbers.cached_tokens == 128


@pytest.mark.parametrize("drafts", [0, 1, None])
@pytest.mark.parametrize(("shape", "window"), [(NARROW, 9), (WIDE, 70)])
def test_every_row_in_sight_is_mapped_and_right_past_windows_and_blocks(
    shape: str, window: int, drafts: int | None
) -> None:
    """From window - 4 on, past window + 4, and past the release of the first blocks."""
    machine = Machine(shape)
    count = 150 if shape == NARROW else 170
    name = machine.submit(
        tokens(window - 5), SamplingParams(max_tokens=count, temperature=1.0), draft_tokens=drafts
    )
    seen = set[int]()
    while not machine.scheduler.idle:
        machine.step()
        for answer in machine.live:
            seen.add(answer.computed - window)
            if near(answer, window):
                machine.check_rows(answer)
    assert seen & set(range(-4, 5))
    assert machine.said[name, 0].end is not None


def near(answer: Answer, window: int) -> bool:
    """Whether an edge of the window meets one of a block, or the text's beginning."""
    edges = (answer.computed, answer.computed - window)
    return any(abs((edge + 6) % 64 - 6) <= 5 for edge in edges)


@pytest.mark.parametrize("drafts", [0, None])
@pytest.mark.parametrize("shape", [NARROW, WIDE])
def test_sliding_blocks_do_not_grow_with_the_text(shape: str, drafts: int | None) -> None:
    machine = Machine(shape)
    machine.submit(tokens(100), SamplingParams(max_tokens=330), draft_tokens=drafts)
    used: list[int] = []
    while not machine.scheduler.idle:
        machine.step()
        used.append(machine.memory.cache.sliding.used)
    assert max(used) <= machine.memory.needed(CONTEXT).sliding
    assert max(used) < -(-430 // 64)
    assert max(used[-60:-1]) <= max(used[:-60])


@pytest.mark.parametrize("shape", [NARROW, WIDE])
def test_pools_that_hold_one_text_serve_several_slowly(shape: str) -> None:
    sizes = Machine(shape).memory.needed(264)
    machine = Machine(shape, pools=sizes)
    for seed in range(4):
        prompt, params = tokens(100 + 30 * seed, seed), SamplingParams(max_tokens=70)
        machine.submit(prompt, params, draft_tokens=0)
        machine.submit(prompt, params)
    machine.run()


def test_the_end_of_the_text_used_longest_ago_is_given_up_first() -> None:
    machine = Machine(pools=PoolSizes(full=7, sliding=30))
    one = SamplingParams(max_tokens=1)

    def reused(seed: int) -> int:
        end = machine.ask(tokens(131, seed), one).end
        assert end is not None
        return end.numbers.cached_tokens

    assert [reused(seed) for seed in (0, 1, 0)] == [0, 0, 128]
    # Three blocks are free, and each text keeps two.
    assert [reused(seed) for seed in (2, 0, 1)] == [0, 128, 128]
    # One is free; the third text's end goes, and its beginning stays.
    assert [reused(seed) for seed in (3, 0, 1, 2)] == [0, 128, 128, 0]
