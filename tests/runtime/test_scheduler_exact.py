"""Every request's output is the same alone, in any batch, preempted, from cache, with any K.

The machine compares tokens, text, logprobs and ends with the request alone; here are the parameters
for which that is hard, and proof that what should have happened did: preemptions and cache hits.
"""

from collections.abc import Callable

import pytest

from runtime.answer import Answer
from runtime.pools import PoolSizes
from runtime.request import Constraint, SamplingParams
from runtime.scheduler import Limits
from tests.graphs.whole import golden
from tests.runtime.foretold import foretell
from tests.runtime.machine import NARROW, WIDE, Machine, Said, alone, tokens
from tests.runtime.tiny_grammars import GRAMMARS, SCHEMA, TOKENIZER

# Three of the texts below do not fit at once: 3 x 4 full blocks.
TIGHT = PoolSizes(full=9, sliding=13)
EXACT = {
    "greedy": SamplingParams(max_tokens=70),
    "sampled": SamplingParams(max_tokens=70, temperature=1.0, top_k=5, seed=-3),
    "penalties": SamplingParams(
        max_tokens=70, temperature=0.7, presence_penalty=0.5, frequency_penalty=1.0, seed=1
    ),
    "repetition": SamplingParams(max_tokens=70, repetition_penalty=1.5, logit_bias={3: 4.0}),
    "logprobs": SamplingParams(max_tokens=70, temperature=1.0, logprobs=3, prompt_logprobs=2),
    "allowed": SamplingParams(max_tokens=70, allowed_token_ids=(1, 4, 6, 8), temperature=1.0),
    "minimum": SamplingParams(max_tokens=70, min_tokens=68, stop_token_ids=(1, 2, 3, 4, 5)),
}


@pytest.mark.parametrize("drafts", [0, None])
@pytest.mark.parametrize("name", EXACT)
def test_in_a_batch_preempted_and_with_any_number_of_drafts(name: str, drafts: int | None) -> None:
    machine = Machine(NARROW, slots=3, pools=TIGHT)
    for seed in range(3):
        machine.submit(tokens(126 + seed, seed), EXACT[name], draft_tokens=drafts)
    machine.run()
    ends = [said.end for said in machine.said.values()]
    assert sum(end.numbers.preemptions for end in ends if end) > 0
    # Once more: what is left of them in the cache.
    again = machine.ask(tokens(128, 2), EXACT[name], draft_tokens=drafts)
    assert again.end is not None


def test_preempted_before_its_prompt_is_loaded_it_tells_the_prompt_once() -> None:
    """The one that is loading gives its blocks to the one that runs."""
    limits = Limits(chunk_rows=16)
    machine = Machine(NARROW, slots=2, pools=PoolSizes(full=6, sliding=9), limits=limits)
    machine.submit(tokens(44), SamplingParams(max_tokens=60), draft_tokens=0)
    machine.step()
    params = SamplingParams(max_tokens=3, prompt_logprobs=1, logprobs=1)
    name = machine.submit(tokens(300, 1), params)
    machine.run()
    end = machine.said[name, 0].end
    assert end is not None
    assert end.numbers.preemptions > 0


SCHEMA_HERE = Constraint(kind="json_schema", source=SCHEMA)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=60, constraint=SCHEMA_HERE, temperature=1.0, seed=2),
        SamplingParams(max_tokens=60, constraint=SCHEMA_HERE, frequency_penalty=0.5),
        SamplingParams(max_tokens=60, temperature=1.0, stop=("a b", "ee"), bad_words=("the",)),
    ],
)
def test_grammars_stop_strings_and_bad_words_survive_a_preemption(params: SamplingParams) -> None:
    """The second answer has said a few tokens when it needs the block that is not there."""
    pools = PoolSizes(full=4, sliding=16)
    machine = Machine("golden", slots=2, pools=pools, tokenizer=TOKENIZER, grammars=GRAMMARS)
    for length in (110, 120):
        prompt = golden()["prompt_60"].repeat(2)[:length].tolist()
        machine.submit(prompt, SamplingParams(max_tokens=60) if length == 110 else params)
    machine.run()
    end = machine.said["1", 0].end
    assert end is not None
    assert end.numbers.preemptions == 1


@pytest.mark.parametrize("shape", [NARROW, WIDE])
@pytest.mark.parametrize("length", [64, 65, 66, 127, 128, 129, 130, 190])
def test_a_second_identical_request_says_and_accepts_the_same(shape: str, length: int) -> None:
    """Fault E1: a reused prefix without its MTP rows, or with them shifted."""
    machine = Machine(shape)
    prompt, params = tokens(length), SamplingParams(max_tokens=40, temperature=0.5, seed=1)
    cold, warm, third = (machine.ask(prompt, params) for _ in range(3))
    reused = (length - 1) // 64 * 64
    assert [cached(said) for said in (cold, warm, third)] == [0, reused, reused]
    assert warm.steps == third.steps == cold.steps  # drafts and all


@pytest.mark.parametrize("other", range(62, 68))
def test_texts_that_part_near_a_blocks_end_draft_as_if_alone(other: int) -> None:
    """The last MTP rows of a block have seen the tokens behind it: another text's, if they part
    there. That text's own next block ends in sight of them."""
    machine, params = Machine(WIDE), SamplingParams(max_tokens=30, temperature=1.0)
    one = tokens(190)
    two = one[:other] + tokens(190 - other, seed=9)
    for prompt in (one, two, one, two):
        machine.ask(prompt, params)
    for prompt in (one, two):
        name = machine.submit(prompt, params)
        machine.step()
        machine.check_rows(machine.live[0])
        machine.run()
        warm = machine.said[name, 0]
        assert cached(warm) == 128
        assert warm.steps == Machine(WIDE).ask(prompt, params).steps


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_prompt_that_is_given_up_half_way_leaves_what_a_whole_one_does(chunks: int) -> None:
    """Fault F1: the last MTP rows of a chunk have seen the first tokens of the next one, which may
    never be run."""
    machine, params = Machine(WIDE), SamplingParams(max_tokens=30)
    prompt = tokens(64 * chunks + 67)
    name = machine.submit(prompt, params)
    for _ in range(chunks):
        machine.step()
    machine.scheduler.cancel(name)
    machine.run()
    for reused in (64 * chunks, 64 * chunks + 64):
        name = machine.submit(prompt, params)
        machine.step()
        machine.check_rows(machine.live[0])
        machine.run()
        warm = machine.said[name, 0]
        assert cached(warm) == reused
        assert warm.steps == Machine(WIDE).ask(prompt, params).steps


def test_the_answers_of_one_request_are_its_choices() -> None:
    machine = Machine()
    name = machine.submit(tokens(70), SamplingParams(n=6, max_tokens=30, temperature=1.0))
    machine.run()
    answers = [machine.said[name, index] for index in range(6)]
    assert len({tuple(said.tokens) for said in answers}) > 3
    assert sum(cached(said) for said in answers) > 0


def test_texts_of_different_salts_share_nothing() -> None:
    machine, params = Machine(), SamplingParams(max_tokens=3)
    salts = ("", "a", "b", "a", "")
    reused = [cached(machine.ask(tokens(130), params, salt=salt)) for salt in salts]
    assert reused == [0, 0, 0, 128, 128]


def test_a_prompt_whose_logprobs_are_asked_for_is_run_whole() -> None:
    machine = Machine()
    for params in (SamplingParams(max_tokens=1), SamplingParams(max_tokens=1, prompt_logprobs=1)):
        assert cached(machine.ask(tokens(130), params)) == 0


def test_a_conversation_goes_on_from_its_last_answer() -> None:
    """Whole blocks of prompt and answer are reused, the tokens behind the end of it are not."""
    machine, text, before = Machine(), tokens(50), 0
    for turn in range(4):
        said = machine.ask(text, SamplingParams(max_tokens=60, temperature=1.0, seed=turn))
        assert cached(said) in (max(0, before - 1) // 64 * 64, before // 64 * 64)
        before = len(text) + len(said.tokens)
        text = text + said.tokens + tokens(5, seed=turn)


@pytest.mark.parametrize("shape", [NARROW, WIDE])
@pytest.mark.parametrize("drafts", [1, None])
def test_whole_blocks_of_an_answer_are_found_wherever_a_text_goes_on(
    shape: str, drafts: int | None
) -> None:
    """What the rows before a block's end saw of an answer are its tokens, not drafts of them."""
    machine, prompt = Machine(shape), tokens(40)
    said = machine.ask(prompt, SamplingParams(max_tokens=180), draft_tokens=drafts)
    text = prompt + said.tokens
    for cut in (130, 150, 195):
        params = SamplingParams(max_tokens=24, temperature=1.0)
        assert cached(machine.ask(text[:cut] + tokens(3, cut), params)) == cut // 64 * 64


def test_nothing_behind_the_end_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault G1: rows of a window were run that would make the text's block whole."""
    computed: list[int] = []
    for length in range(55, 62):
        machine, prompt = Machine(), tokens(length)
        close = machine.scheduler.seats.close

        def noted(answer: Answer, close: Callable[[Answer], None] = close) -> None:
            computed.append(answer.computed)
            close(answer)

        monkeypatch.setattr(machine.scheduler.seats, "close", noted)
        said = alone(NARROW, tuple(prompt), SamplingParams(max_tokens=20)).tokens
        foretell(monkeypatch, machine.engine, prompt, said)
        machine.ask(prompt, SamplingParams(max_tokens=63 - length))
        assert len(machine.memory.cache) == 0
    assert max(computed) >= 64


def cached(said: Said) -> int:
    assert said.end is not None
    return said.end.numbers.cached_tokens
