"""One request from prompt to end: prefill, then verify, accept and draft until something stops it.

Knows one engine and one slot. Does not know text. Keeps true: the tokens do not depend on K, and
the generator yields each step as soon as it is committed.
"""

from collections.abc import Iterator, Sequence

from runtime.engine import Committed, Engine, Turn
from runtime.request import SamplingParams, Step
from runtime.stop import scan


def generate(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, *, slot: int = 0
) -> Iterator[Step]:
    """Yield the steps of one request; the last has a finish_reason.

    Raises ValueError when the prompt is empty, holds an id outside the vocabulary, or does not fit
    the engine's context together with max_tokens.
    """
    check_request(engine, prompt, params, slot=slot)
    stop_ids = frozenset(params.stop_ids)
    if not params.ignore_eos:
        stop_ids |= frozenset(engine.config.stop_ids)
    committed = engine.prefill(prompt, slot, params)
    drafted: tuple[int, ...] = ()
    emitted = 0
    while True:
        step = _step(committed, drafted, params.max_tokens - emitted, stop_ids)
        yield step
        if step.finish_reason is not None:
            return
        emitted += len(step.token_ids)
        drafted = committed.drafts
        turn = Turn(
            slot=slot,
            position=len(prompt) + emitted - 1,
            token=step.token_ids[-1],
            drafts=drafted,
        )
        [committed] = engine.decode([turn])


def _step(
    committed: Committed, drafted: tuple[int, ...], room: int, stop_ids: frozenset[int]
) -> Step:
    emitted, reason = scan(committed.tokens, room, stop_ids)
    return Step(
        token_ids=emitted,
        # Drafts behind the end were never asked for.
        drafted=drafted[: len(emitted)] if reason else drafted,
        accepted=min(committed.accepted, len(emitted)),
        finish_reason=reason,
    )


def check_request(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, *, slot: int = 0
) -> None:
    """Refuse what can never run; see generate."""
    if not 0 <= slot < engine.state.slots:
        raise ValueError(f"slot = {slot}: this engine has slots 0 to {engine.state.slots - 1}")
    if not prompt:
        raise ValueError("the prompt is empty")
    if bad := [token for token in prompt if not 0 <= token < engine.config.vocab_size]:
        raise ValueError(f"prompt token {bad[0]} is outside 0..{engine.config.vocab_size - 1}")
    needed = len(prompt) + params.max_tokens
    if needed > engine.context:
        raise ValueError(
            f"{len(prompt)} prompt tokens + max_tokens {params.max_tokens} = {needed} positions "
            f"exceed the context of {engine.context}"
        )
