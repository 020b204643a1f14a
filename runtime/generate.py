"""One request from prompt to end, alone in a slot: prefill, then verify, accept and draft until
something stops it.

Knows one engine and one slot. Does not know other requests: the scheduler runs those. Keeps true:
the tokens depend neither on K nor on the width policy, and the generator yields each step as soon
as it is committed.
"""

from collections.abc import Iterator, Sequence

from runtime.answer import Answer, Request
from runtime.engine import Engine
from runtime.grammar import Grammars
from runtime.request import SamplingParams, Step, check_ids, check_prompt
from runtime.tokenizer import Tokenizer
from runtime.width import FixedWidth, WidthPolicy


def generate(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    slot: int = 0,
    policy: WidthPolicy | None = None,
    tokenizer: Tokenizer | None = None,
    grammars: Grammars | None = None,
) -> Iterator[Step]:
    """Yield the steps of one request with one answer; the last has a finish_reason.

    Without a policy each step verifies all the drafts the engine makes. Steps have text where there
    is a tokenizer. Raises ValueError when the prompt is empty, holds an id outside the vocabulary,
    or does not fit the engine's context together with max_tokens, and for parameters that need a
    tokenizer or Grammars that are not there.
    """
    if not 0 <= slot < engine.state.slots:
        raise ValueError(f"slot = {slot}: this engine has slots 0 to {engine.state.slots - 1}")
    if params.n != 1:
        raise ValueError(f"n = {params.n}: one answer at a time, see SamplingParams.answers")
    check_request(engine, prompt, params)
    answer = Answer.of(
        engine,
        Request(id="", prompt=tuple(prompt), params=params),
        params,
        policy=policy or FixedWidth(count=engine.draft_tokens),
        tokenizer=tokenizer,
        grammars=grammars,
    )
    decoding = answer.decoding
    committed = engine.prefill(prompt, slot, params, decoding.first_mask())
    decoding.begin(slot, committed)
    step, finish = answer.first(committed)
    yield step
    while finish is None:
        turn = decoding.turn(answer.tokens[-1], len(answer.tokens) - 1)
        drafting = decoding.wants_drafts
        [committed] = engine.decode([turn], draft=drafting)
        step, finish = answer.take(committed, turn.drafts, drafted=drafting)
        yield step


def check_request(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> None:
    """Refuse what can never run: ValueError naming what is wrong."""
    check_prompt(prompt, engine.config.vocab_size)
    check_ids(params, engine.config.vocab_size)
    check_length(len(prompt), params.max_tokens, engine.context)


def check_length(prompt_tokens: int, max_tokens: int, context: int) -> None:
    """Refuse what is longer than a context: ValueError with the numbers."""
    needed = prompt_tokens + max_tokens
    if needed > context:
        raise ValueError(
            f"{prompt_tokens} prompt tokens + max_tokens {max_tokens} = {needed} positions "
            f"exceed the context of {context}"
        )
