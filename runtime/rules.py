"""What one request may draw at each row of a window: grammar, allowed ids, bad words, min_tokens.

Knows the tokens that a request has committed. Does not know how a row is drawn. Keeps true: a row
allows the same tokens in whatever window it stands, drafts before it counted as committed; the
state moves by committed tokens alone; a draft that its row forbids is cut off and never an error; a
row always allows something, since the answer ends where nothing may follow.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graphs.sampling import bit_set
from runtime.exchange import Mask
from runtime.grammar import GrammarError, Grammars, Matcher
from runtime.parsers.reasoning import Markers
from runtime.request import SamplingParams
from runtime.stop import stop_ids
from runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Row:
    """What a row may draw: a bit set int32 [U], or None for all. `over`: nothing may follow the
    tokens before it, so what it draws is dropped."""

    allowed: Mask | None = None
    over: bool = False

    def allows(self, token: int) -> bool:
        return self.allowed is None or bool(self.allowed[token // 32] >> token % 32 & 1)


class Rules:
    """One request's rules and what it has committed.

    A constraint ends the answer at the token after which nothing can follow; where the answer may
    end or go on, the stop ids are allowed beside what goes on. Until the end of the reasoning, a
    constraint that comes after it forbids a tool call alone, which would end the reasoning with the
    constraint never begun. Raises ValueError for what needs a tokenizer or Grammars that are not
    there, GrammarError (a ValueError) for a constraint that is refused and when no first token is
    left; window and commit raise it when a constraint's step costs too much.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab: int,
        eos_ids: Collection[int] = (),
        tokenizer: Tokenizer | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._stop_ids = stop_ids(params, eos_ids)
        self._stops = bits(self._stop_ids, vocab)
        self._min_tokens = params.min_tokens
        self._bad_words = _BadWords(_sequences(params.bad_words, tokenizer), vocab)
        self._base = self._bad_words.singles
        if params.allowed_token_ids is not None:
            self._base = _both(self._base, bits(params.allowed_token_ids, vocab))
        self._matcher, markers = _matcher(params, grammars)
        self._marker = markers and markers.end
        call = markers and markers.tool_call
        self._thinking = None if call is None else ~bits((call,), vocab)
        self._active = self._matcher is not None and markers is None
        self._count = 0
        self._tail: tuple[int, ...] = ()  # the last tokens, as far as bad words look back
        self._taken = 0  # tokens that the matcher took in this window
        self._over: tuple[int, ...] | None = None  # drafts of this window that nothing may follow
        # Most requests have no rules, and their steps pay for none.
        self._free = self._matcher is None and self._base is None and not params.min_tokens
        self._free = self._free and not self._bad_words.reach
        self._next = self._row()
        if self._next.over:
            raise GrammarError("constraint, allowed_token_ids and bad_words leave no first token")

    def window(self, drafts: Sequence[int]) -> tuple[int, Mask | None]:
        """(k, mask): how many of the drafts may stand, and what the rows of the last token and of
        these k drafts may draw, int32 [1+k, U]; None if nothing is forbidden."""
        if self._free:
            return len(drafts), None
        assert not self._next.over, "the answer has ended"
        before = (self._active, self._count, self._tail)
        self._taken = 0
        rows = [self._next]
        for draft in drafts:
            if rows[-1].over or not rows[-1].allows(draft):
                break
            if draft in self._stop_ids:
                rows.append(Row(over=True))
            else:
                self._step(draft)
                rows.append(self._row())
        if self._matcher is not None:
            self._matcher.rollback(self._taken)
        self._active, self._count, self._tail = before
        kept = len(rows) - 1
        self._over = tuple(drafts[:kept]) if rows[-1].over else None
        return kept, _stack(rows)

    def commit(self, tokens: Sequence[int]) -> int | None:
        """Take the tokens that a step committed, from the beginning of the last window on. After
        how many of them nothing may follow, if so; the request ends there at the latest."""
        if self._free:
            return None
        over = self._over
        if over is not None and tuple(tokens[: len(over)]) == over:
            self._next = Row(over=True)
            return len(over)
        self._over = None
        for token in tokens:
            if token in self._stop_ids:
                self._next = Row(over=True)
                return None
            self._step(token)
        self._next = self._row()
        return len(tokens) if self._next.over else None

    def _step(self, token: int) -> None:
        if self._active:
            assert self._matcher is not None
            self._matcher.advance(token)
            self._taken += 1
        elif token == self._marker:
            self._active = True
        self._count += 1
        if self._bad_words.reach:
            self._tail = (*self._tail, token)[-self._bad_words.reach :]

    def _row(self) -> Row:
        """What may follow the tokens so far."""
        allowed = self._base
        if self._thinking is not None and not self._active:
            allowed = _both(allowed, self._thinking)
        if self._active:
            assert self._matcher is not None
            if self._matcher.ended:
                return Row(over=True)
            grammar = self._matcher.allowed()
            allowed = _both(allowed, grammar | self._stops if self._matcher.accepting else grammar)
        if self._count < self._min_tokens:
            allowed = _both(allowed, ~self._stops)
        completing = self._bad_words.completing(self._tail)
        if completing is not None:
            allowed = _both(allowed, ~completing)
        return Row(allowed, over=allowed is not None and not allowed.any())


class _BadWords:
    """Token sequences that must not come out whole.

    `singles` is what those of one token leave; None without any. `reach`: how many tokens back the
    others look."""

    def __init__(self, sequences: Iterable[tuple[int, ...]], vocab: int) -> None:
        self._vocab = vocab
        self._by_last: dict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        self.reach = 0
        singles: list[int] = []
        for *before, last in sequences:
            if not before:
                singles.append(last)
                continue
            self._by_last[before[-1]].append((tuple(before), last))
            self.reach = max(self.reach, len(before))
        self.singles = ~bits(singles, vocab) if singles else None

    def completing(self, tail: tuple[int, ...]) -> Mask | None:
        """The tokens that would complete a sequence behind `tail`."""
        known = self._by_last.get(tail[-1], ()) if tail else ()
        last = [token for before, token in known if tail[-len(before) :] == before]
        return bits(last, self._vocab) if last else None


def bits(ids: Iterable[int], vocab: int) -> Mask:
    """The bit set of token ids, int32 [U]; ids outside the vocabulary are left out."""
    return bit_set([token for token in ids if 0 <= token < vocab], vocab)


def _both(one: Mask | None, other: Mask) -> Mask:
    return other if one is None else one & other


def _stack(rows: Sequence[Row]) -> Mask | None:
    words = next((len(row.allowed) for row in rows if row.allowed is not None), None)
    if words is None:
        return None
    # A row that is over draws something too, so that the engine never has nothing to choose.
    free = np.full(words, -1, dtype=np.int32)
    return np.stack([free if row.over or row.allowed is None else row.allowed for row in rows])


def _sequences(words: Sequence[str], tokenizer: Tokenizer | None) -> set[tuple[int, ...]]:
    """Each word as the tokenizer writes it at a text's beginning and behind a blank."""
    if not words:
        return set()
    if tokenizer is None:
        raise ValueError("bad_words: words need a tokenizer")
    bos = tokenizer.bos_token
    return {
        tuple(tokenizer.encode(bos + blank + word)[1:]) for word in words for blank in ("", " ")
    }


def _matcher(
    params: SamplingParams, grammars: Grammars | None
) -> tuple[Matcher | None, Markers | None]:
    """The matcher, and the markers of the reasoning behind which it begins, if it does."""
    constraint = params.constraint
    if constraint is None:
        return None, None
    if grammars is None:
        raise ValueError("constraint: constraints need Grammars")
    after = constraint.after_reasoning
    markers = Markers.of(grammars.tokenizer, tools=True) if after else None
    return grammars.matcher(constraint), markers
