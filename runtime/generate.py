"""One request from prompt to end: prefill, then verify, accept and draft until something stops it.

Knows one engine and one slot. Keeps true: the tokens depend neither on K nor on the width policy,
and the generator yields each step as soon as it is committed.
"""

from collections.abc import Iterator, Sequence

from runtime.engine import Engine
from runtime.exchange import Committed, Turn
from runtime.grammar import Grammars
from runtime.request import SamplingParams, Step, check_ids
from runtime.rules import Rules
from runtime.stop import Scanned, Scanner
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

    Without a policy each step verifies all the drafts the engine makes; without a tokenizer the
    steps have no text. Raises ValueError when the prompt is empty, holds an id outside the
    vocabulary, does not fit the engine's context together with max_tokens, or when the parameters
    need what is not there.
    """
    check_request(engine, prompt, params, slot=slot)
    scanner = Scanner(params, eos_ids=engine.config.stop_ids, tokenizer=tokenizer)
    rules = Rules(
        params,
        vocab=engine.config.vocab_size,
        eos_ids=engine.config.stop_ids,
        tokenizer=tokenizer,
        grammars=grammars,
    )
    decoding = Decoding(engine, slot, policy or FixedWidth(count=engine.draft_tokens), rules)
    committed = decoding.prefill(prompt, params)
    drafted: tuple[int, ...] = ()
    position = len(prompt) - 1
    while True:
        ended = rules.commit(committed.tokens)
        step = _step(committed, drafted, scanner.push(committed.tokens, ended=ended))
        yield step
        if step.finish_reason is not None:
            return
        position += len(step.token_ids)
        drafted, committed = decoding.step(step.token_ids[-1], position)


class Decoding:
    """One slot's decode steps under a width policy.

    Keeps true: drafts are verified only right after they were made, and rows that were decoded
    without drafting are shown to the MTP layers before these draft again.
    """

    def __init__(self, engine: Engine, slot: int, policy: WidthPolicy, rules: Rules):
        self._engine, self._slot, self._policy, self._rules = engine, slot, policy, rules
        self._drafts: tuple[int, ...] = ()
        self._unseen = 0  # committed rows that the MTP layers have not run over

    def prefill(self, prompt: Sequence[int], params: SamplingParams) -> Committed:
        _, mask = self._rules.window(())
        committed = self._engine.prefill(prompt, self._slot, params, mask)
        self._drafts = committed.drafts
        return committed

    def step(self, token: int, position: int) -> tuple[tuple[int, ...], Committed]:
        """Decode from the last committed token at `position`: the drafts that were verified, and
        what was committed."""
        wanted = self._policy.drafts()
        offered = self._drafts[:wanted]
        legal, mask = self._rules.window(offered)
        drafts = offered[:legal]
        turn = Turn(slot=self._slot, position=position, token=token, drafts=drafts, mask=mask)
        draft = wanted > 0 and self._unseen == 0
        [committed] = self._engine.decode([turn], draft=draft)
        # A draft that the rules forbid was wrong: its row would not have drawn it.
        self._policy.verified(len(offered), committed.accepted)
        self._drafts = committed.drafts
        if not draft:
            self._unseen += len(committed.tokens)
            self._look(position + len(committed.tokens) - 1, wanted)
        return drafts, committed

    def _look(self, end: int, wanted: int) -> None:
        """Catch up when the policy would draft, or wants to know whether it should."""
        after = self._policy.look_after()
        if after == 0 or (wanted == 0 and self._unseen < after):
            return
        seen = self._engine.observe(self._slot, end, self._unseen)
        self._policy.observed(seen.hits, seen.trials)
        self._drafts, self._unseen = seen.drafts, 0


def _step(committed: Committed, drafted: tuple[int, ...], scanned: Scanned) -> Step:
    emitted, finish = scanned.token_ids, scanned.finish
    return Step(
        token_ids=emitted,
        # Drafts behind the end were never asked for.
        drafted=drafted[: len(emitted)] if finish else drafted,
        accepted=min(committed.accepted, len(emitted)),
        finish_reason=finish and finish.reason,
        matched=finish and finish.matched,
        pieces=scanned.pieces,
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
    check_ids(params, engine.config.vocab_size)
    if params.n != 1:
        raise ValueError(f"n = {params.n}: one answer at a time, see SamplingParams.answers")
    needed = len(prompt) + params.max_tokens
    if needed > engine.context:
        raise ValueError(
            f"{len(prompt)} prompt tokens + max_tokens {params.max_tokens} = {needed} positions "
            f"exceed the context of {engine.context}"
        )
