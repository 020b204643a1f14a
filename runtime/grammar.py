"""Constraints as matchers: which tokens may come next, by llguidance.

Knows formal languages and the bytes of tokens. Does not know windows, drafts or other rules
(rules.py), nor which token ends a request. Keeps true: a constraint is refused before it costs much
time or memory; ids without text, padding ids among them, are never allowed; a matcher that was
rolled back is as if it had never advanced.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

import llguidance
import numpy as np

from graphs.sampling import bit_set
from runtime.exchange import Mask
from runtime.request import Constraint
from runtime.tokenizer import Tokenizer, TokenizerError

# llguidance counts work, not time: these are below a second on one core of 2024. Beyond them a
# constraint is refused, or, where its cost shows later, the request that uses it fails.
LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=100_000,
    max_grammar_size=100_000,
    max_lexer_states=20_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    verbose_errors=False,
)
CACHED = 64  # compiled constraints that are kept, the last used
MAX_MESSAGE = 300


class GrammarError(ValueError):
    """A constraint that cannot be read, that nothing satisfies, or that costs too much."""


class Grammars:
    """Compiles the constraints of one tokenizer's requests. `eos_ids` are the model's stop ids."""

    def __init__(self, tokenizer: Tokenizer, *, eos_ids: Collection[int]) -> None:
        self.tokenizer = tokenizer
        vocabulary = _Vocabulary(tokenizer, eos_ids)
        self._vocabulary = llguidance.LLTokenizer(
            vocabulary,  # type: ignore[arg-type]  # all that llguidance asks of its own class
            n_vocab=tokenizer.vocab_size,
            eos_token=sorted(eos_ids) or None,
        )
        self._keep = ~bit_set(sorted(eos_ids), tokenizer.vocab_size)
        self._compiled: OrderedDict[Constraint, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()  # of what is kept; compiling holds it not

    def matcher(self, constraint: Constraint) -> "Matcher":
        """A matcher at the beginning of the constraint. From any thread. Raises GrammarError."""
        with self._lock:
            compiled = self._compiled.get(constraint)
        compiled = compiled or self._compile(constraint)
        with self._lock:
            self._compiled[constraint] = compiled
            self._compiled.move_to_end(constraint)
            if len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
            return Matcher(compiled.deep_copy(), self._keep)

    def _compile(self, constraint: Constraint) -> llguidance.LLMatcher:
        try:
            source = _SOURCES[constraint.kind](constraint, self.tokenizer)
        except GrammarError:
            raise
        except ValueError as error:  # llguidance's converters, and JSON that is none
            raise _refusal(constraint, str(error)) from error
        made = llguidance.LLMatcher(self._vocabulary, source, log_level=0, limits=LIMITS)
        if not made.is_error():
            made.compute_bitmask()  # what the first step costs shows now
        if made.is_error():
            raise _refusal(constraint, made.get_error())
        return made


class Matcher:
    """Where one answer stands in its constraint."""

    def __init__(self, matcher: llguidance.LLMatcher, keep: Mask) -> None:
        self._matcher, self._keep = matcher, keep

    @property
    def ended(self) -> bool:
        """Whether the constraint is met and nothing can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def accepting(self) -> bool:
        """Whether the answer may end here."""
        return self._matcher.is_accepting()

    def allowed(self) -> Mask:
        """A bit set of the tokens that may come next, int32 [U], the model's stop ids not among
        them. Not to be asked of a matcher that has ended. Raises GrammarError when it costs too
        much."""
        assert not self._matcher.is_stopped(), "nothing follows the end of a constraint"
        row = np.empty_like(self._keep)
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._check()
        return row & self._keep

    def advance(self, token: int) -> None:
        """Take a token that `allowed` holds."""
        self._matcher.consume_token(token)
        self._check()

    def rollback(self, count: int) -> None:
        """Undo the last `count` advances."""
        if count:
            self._matcher.rollback(count)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"constraint: {_short(self._matcher.get_error())}")


class _Vocabulary:
    """The tokens as llguidance asks for them; the attributes have its names."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, eos_ids: Collection[int]) -> None:
        ids = range(tokenizer.vocab_size)
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = min(eos_ids, default=tokenizer.bos_id)
        self.tokens = [tokenizer.bytes_of(token) for token in ids]
        self.special_token_ids = [token for token in ids if tokenizer.is_special(token)]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        # Only for text that can continue in one way, which nobody asks of it here.
        return self._tokenizer.encode(self._tokenizer.bos_token + text)[1:]


def _from(name: llguidance.GrammarFormat) -> Callable[[Constraint, Tokenizer], str]:
    return lambda constraint, _: llguidance.grammar_from(name, constraint.source)


def _json_schema(constraint: Constraint, tokenizer: Tokenizer) -> str:
    schema = '{"type": "object"}' if constraint.kind == "json_object" else constraint.source
    if not constraint.after_reasoning:
        return llguidance.grammar_from("json_schema", schema)
    # The model breaks the line behind its reasoning. JSON may begin with blanks, and a model that
    # is kept from what it has learnt to write goes on with what it has not.
    start, own = json.dumps('start: "\\n"? @json'), f'"name": "json", "json_schema": {schema}'
    return f'{{"grammars": [{{"lark_grammar": {start}}}, {{{own}}}]}}'


def _choice(constraint: Constraint, tokenizer: Tokenizer) -> str:
    return llguidance.grammar_from("choice", json.dumps(constraint.choices))


def _structural_tag(constraint: Constraint, tokenizer: Tokenizer) -> str:
    """From {"triggers": [...], "structures": [{"begin": ..., "schema": {...}, "end": ...}]}."""
    content = json.loads(constraint.source)
    match content:
        case {"triggers": [*triggers], "structures": [_, *_] as structures}:
            pass
        case _:
            raise _refusal(constraint, 'expected {"triggers": [...], "structures": [...]}')
    tags = [_tag(constraint, triggers, structure) for structure in structures]
    special = any(_is_special(tokenizer, tag.trigger) for tag in tags)
    return llguidance.StructTag.to_grammar(tags, assume_special=special)


def _tag(constraint: Constraint, triggers: list[Any], structure: Any) -> llguidance.StructTag:
    match structure:
        case {"begin": str(begin), "schema": dict(schema), "end": str(end)}:
            pass
        case _:
            raise _refusal(constraint, 'expected structures of {"begin", "schema", "end"}')
    for trigger in triggers:
        if isinstance(trigger, str) and trigger and begin.startswith(trigger):
            return llguidance.StructTag(trigger=trigger, begin=begin, grammar=schema, end=end)
    raise _refusal(constraint, f"no trigger is the beginning of {begin!r}")


def _is_special(tokenizer: Tokenizer, text: str) -> bool:
    try:
        return tokenizer.is_special(tokenizer.id_of(text))
    except TokenizerError:
        return False


_SOURCES: dict[str, Callable[[Constraint, Tokenizer], str]] = {
    "json_schema": _json_schema,
    "json_object": _json_schema,
    "regex": _from("regex"),
    "ebnf": _from("ebnf"),
    "choice": _choice,
    "structural_tag": _structural_tag,
}


def _refusal(constraint: Constraint, problem: str) -> GrammarError:
    return GrammarError(f"constraint {constraint.kind}: {_short(problem)}")


def _short(problem: str) -> str:
    """One line: it ends up in a status. The source may come first and the reason last."""
    line, part = " ".join(problem.split()), MAX_MESSAGE // 2
    return line if len(line) <= MAX_MESSAGE else f"{line[:part]} ... {line[-part:]}"
