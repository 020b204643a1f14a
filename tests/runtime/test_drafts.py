"""The MTP chain's drafts equal those of a chain from scratch, whatever happened since the prompt.

Steps of changing width, steps decoded without drafting and caught up with later, several slots in
one call, and a prompt that goes on after an answer with other tokens than were sampled. Exact, in
both precisions; the reference runs whole sequences from zeroed state (graphs/whole.py).
"""

import itertools
from collections.abc import Sequence
from random import Random

import pytest
import torch

from graphs.draft_blocks import LOOKED
from graphs.plan import EnginePlan
from runtime.engine import DTYPES, Engine, Precision
from runtime.exchange import Committed, Turn
from runtime.generate import generate
from runtime.request import SamplingParams
from runtime.width import FixedWidth
from tests.graphs.random_model import SHAPES, VOCAB, random_model
from tests.graphs.whole import Model, chain, drafts_from_scratch, golden, golden_model, residual

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
MODELS = ("golden", *SHAPES)
# Seeds at which some drafts are accepted and others are not.
SEEDS = dict(zip(MODELS, (7, 0, 7, 1), strict=True))


def model_of(name: str) -> Model:
    return golden_model() if name == "golden" else random_model(name, seed=2)


def prompt_of(model: Model, length: int) -> list[int]:
    """The golden prompt, or random tokens of a small vocabulary."""
    if model.config.vocab_size > VOCAB:
        return golden()["prompt_60"].tolist()[:length]
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, VOCAB, (length,), generator=generator).tolist()


def engine_of(
    model: Model, precision: Precision, *, slots: int = 1, prefill: Sequence[int] = (16,)
) -> Engine:
    return Engine(
        *(model.config, model.weights),
        plan=EnginePlan(batches=(slots,), prefill=tuple(prefill)),
        precision=precision,
        draft_tokens=len(model.weights.mtp),
        context=192,
        slots=slots,
    )


class Text:
    """One slot's committed tokens, held against the chain from scratch."""

    def __init__(
        self,
        model: Model,
        engine: Engine,
        precision: Precision,
        prompt: Sequence[int],
        slot: int = 0,
        seed: int = 0,
    ):
        self.model, self.engine, self.slot = model, engine, slot
        self.act = DTYPES[precision]
        self.ids = list(prompt)
        self.drafts: tuple[int, ...] = ()
        self.accepted: list[int] = []
        self.take(engine.prefill(prompt, slot, SamplingParams(temperature=1.0, seed=seed)))

    def turn(self, drafts: int) -> Turn:
        """The next step, with the first `drafts` of the drafts at hand."""
        return Turn(
            slot=self.slot,
            position=len(self.ids) - 1,
            token=self.ids[-1],
            drafts=self.drafts[:drafts],
        )

    def take(self, committed: Committed) -> None:
        self.ids += committed.tokens
        self.drafts = committed.drafts
        self.accepted.append(committed.accepted)

    def step(self, drafts: int, *, draft: bool = True) -> None:
        [committed] = self.engine.decode([self.turn(drafts)], draft=draft)
        self.take(committed)

    def check(self) -> None:
        count = self.engine.draft_tokens
        wanted = drafts_from_scratch(self.model, torch.tensor(self.ids), count, self.act)
        assert list(self.drafts) == wanted

    def right_guesses(self, depth: int, rows: range) -> int:
        """How often that depth, run over the whole text, predicts the token that came."""
        r_TH = residual(self.model, torch.tensor(self.ids[:-1]), self.act)
        past_end = self.ids + [0] * depth  # read by rows whose predictions nobody counts
        next_DT = torch.tensor(
            [past_end[1 + d : 1 + d + len(r_TH)] for d in range(depth + 1)],
        )
        guess_T = chain(self.model, r_TH, next_DT, self.act)[depth][1].argmax(-1)
        return sum(int(guess_T[row]) == self.ids[row + 2 + depth] for row in rows)


def text_of(name: str, precision: Precision, *, length: int = 15) -> Text:
    model = model_of(name)
    # Sizes that leave no room to spare: some calls are exactly as long as they have to be.
    made = engine_of(model, precision, prefill=(1, 2, 4, 16))
    return Text(model, made, precision, prompt_of(model, length), seed=SEEDS[name])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_the_drafts_may_be_used(name: str, precision: Precision) -> None:
    text, dice = text_of(name, precision), Random(4)
    text.check()
    for _ in range(12):
        text.step(dice.randint(0, text.engine.draft_tokens))
        text.check()
    assert len(set(text.accepted)) > 1, "all steps accepted alike: choose another seed"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_slots_of_one_call_may_use_different_numbers(precision: Precision) -> None:
    model, dice = golden_model(), Random(5)
    made = engine_of(model, precision, slots=3)
    texts = [
        Text(model, made, precision, prompt_of(model, length), slot)
        for slot, length in enumerate((3, 15, 24))
    ]
    for _ in range(5):
        turns = [text.turn(dice.randint(0, 3)) for text in texts]
        for text, committed in zip(texts, made.decode(turns), strict=True):
            text.take(committed)
            text.check()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_observing_catches_up_with_steps_that_did_not_draft(
    name: str, precision: Precision
) -> None:
    """The drafts, and the number of predictions that would have been right."""
    text, hits = text_of(name, precision), 0
    for steps in (1, 2, 7, 3):
        # The first step still has drafts to verify; after it there are none.
        start = len(text.ids) - 1
        for _ in range(steps):
            text.step(text.engine.draft_tokens, draft=False)
            assert text.drafts == ()
        end = len(text.ids) - 2
        observed = text.engine.observe(0, end, end + 1 - start)
        text.drafts = observed.drafts
        text.check()
        for depth, (found, trials) in enumerate(zip(observed.hits, observed.trials, strict=True)):
            rows = range(max(start, end + 1 - LOOKED), end - depth)
            assert trials == len(rows)
            assert found == text.right_guesses(depth, rows)
            hits += found
        text.step(text.engine.draft_tokens)
        text.check()
    assert hits, "no prediction was right: choose another seed"


def test_observing_in_parts_leaves_the_same_drafts() -> None:
    text = text_of("golden", "bf16")
    start = len(text.ids) - 1
    for _ in range(9):
        text.step(0, draft=False)
    end = len(text.ids) - 2
    text.engine.observe(0, start + 3, 4)
    text.drafts = text.engine.observe(0, end, end - start - 3).drafts
    text.check()


@pytest.mark.parametrize("name", MODELS)
def test_observing_catches_up_with_a_prompt_that_was_run_without_drafting(name: str) -> None:
    text = text_of(name, "bf16")
    text.ids = text.ids[:14]
    text.take(text.engine.prefill_chunk(text.ids, 0, 16, 0, draft=False))
    assert text.drafts == ()
    text.step(0, draft=False)
    end = len(text.ids) - 2
    text.drafts = text.engine.observe(0, end, end + 1).drafts
    text.check()


@pytest.mark.parametrize("name", MODELS)
def test_rows_too_old_to_matter_are_left_out(name: str) -> None:
    """After more plain steps than a draft depends on, and more than one piece of catching up."""
    text = text_of(name, "bf16")
    reach = text.engine.catch_up.reach
    assert reach + 40 < text.engine.context
    start = len(text.ids) - 1
    while len(text.ids) - 1 - start <= reach + 9:
        text.step(0, draft=False)
    end = len(text.ids) - 2
    text.drafts = text.engine.observe(0, end, end + 1 - start).drafts
    text.check()
    for _ in range(3):
        text.step(text.engine.draft_tokens)
        text.check()


@pytest.mark.parametrize("chunk", [1, 16])
@pytest.mark.parametrize("back", [0, 3])
@pytest.mark.parametrize("more", [1, 2, 5])
@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_may_go_on_with_other_tokens_than_were_sampled(
    name: str, more: int, back: int, chunk: int
) -> None:
    """From the first position that was not run, or a few before it."""
    model = model_of(name)
    made = engine_of(model, "bf16", prefill=(chunk,))
    text = Text(model, made, "bf16", prompt_of(model, 9), seed=SEEDS[name])
    for _ in range(4):
        text.step(made.draft_tokens)
    start = len(text.ids) - 1 - back
    other = [(token + 1) % VOCAB for token in (text.ids[start], 3, 1, 4, 1)][:more]
    text.ids = text.ids[:start] + other
    committed = None
    for place in range(start, len(text.ids), chunk):
        committed = made.prefill_chunk(text.ids, place, chunk, 0)
    assert committed is not None
    text.take(committed)
    text.check()
    for drafts in (made.draft_tokens, 1):
        text.step(drafts)
        text.check()


class ByTurns(FixedWidth):
    """All drafts at two steps, none at the third."""

    def __init__(self) -> None:
        super().__init__(count=3)
        self._steps = itertools.count()

    def drafts(self) -> int:
        return 0 if next(self._steps) % 3 == 1 else self.count


def test_drafts_are_for_the_step_behind_them_alone() -> None:
    """After one that used none, there are none until the MTP layers have caught up."""
    model = golden_model()
    made, prompt = engine_of(model, "bf16"), prompt_of(model, 15)
    params = SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, seed=3)
    first, *steps = generate(made, prompt, params, policy=ByTurns())
    ids = [*prompt, *first.token_ids]
    fresh = []
    for step in steps:
        wanted = drafts_from_scratch(model, torch.tensor(ids), 3, DTYPES["bf16"])
        fresh.append(bool(step.drafted))
        if step.finish_reason is None:
            assert list(step.drafted) in ([], wanted)
        ids += step.token_ids
    assert any(fresh[1:]), "no drafts came again"
