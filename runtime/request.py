"""What a request asks for and what comes back: plain frozen data, validated once.

Knows ranges of parameters and limits on their number. Does not know the model, the tokenizer or a
transport: token ids are checked against a vocabulary by `check_ids`. Keeps true: nothing that a
SamplingParams holds can change after it was checked.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

FinishReason = Literal["stop", "length"]
ConstraintKind = Literal["json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag"]

MAX_STOP_STRINGS, MAX_STOP_CHARS = 16, 256
MAX_STOP_IDS = 256
MAX_BIAS_ENTRIES = 1024
MAX_BAD_WORDS, MAX_BAD_WORD_CHARS = 256, 256
MAX_TOP_LOGPROBS = 20
MAX_ANSWERS = 128
MAX_CHOICES = 1024
MAX_SOURCE_CHARS = 2**16
LARGEST = (2 - 2**-23) * 2.0**127  # of 32 bits, in which engines keep numbers

_INTEGERS = ("top_k", "seed", "choice", "n", "max_tokens", "min_tokens")
_NUMBERS = (
    *("temperature", "top_p", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """What the answer must be: text of one formal language.

    `source`: a JSON schema, a regular expression, a grammar (EBNF) or a structural tag as JSON;
    empty for json_object and choice. `choices`: the texts to choose from. With `after_reasoning`
    the constraint begins with the first token behind the end of the reasoning, and a line break may
    come before JSON. Raises ValueError.
    """

    kind: ConstraintKind
    source: str = ""
    choices: tuple[str, ...] = ()
    after_reasoning: bool = False

    def __post_init__(self) -> None:
        kinds = get_args(ConstraintKind)
        _require(self, self.kind in kinds, "kind", f"one of {', '.join(kinds)}")
        has_source = self.kind not in ("json_object", "choice")
        allowed = f"1 to {MAX_SOURCE_CHARS} characters" if has_source else "empty"
        fits = 1 <= len(self.source) <= MAX_SOURCE_CHARS
        _require(self, fits if has_source else not self.source, "source", allowed)
        if self.kind == "choice":
            _require_texts(self, "choices", MAX_CHOICES, MAX_SOURCE_CHARS)
            total = sum(map(len, self.choices))
            fits = 1 <= total <= MAX_SOURCE_CHARS
            _require(self, fits, "choices", f"1 to {MAX_SOURCE_CHARS} characters together")
        else:
            _require(self, self.choices == (), "choices", "empty")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen, when to end and what to tell of them; temperature 0 is greedy.

    `top_k` 0, `top_p` 1, `min_p` 0, presence and frequency 0 and repetition 1 are off. `seed` is
    any 64-bit integer, signed or unsigned; the `n` answers of one seed are told apart by `choice`.
    Up to `min_tokens` no token is a stop and no stop string counts. The model's own stop ids apply
    unless `ignore_eos`. `bad_words` are texts that never come out whole. `logprobs` and
    `prompt_logprobs`: how many of the likeliest tokens to tell beside each one, 0 the token's own
    alone, None nothing. Raises ValueError naming the field that is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict, hash=False)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    seed: int = 0
    n: int = 1
    choice: int = 0
    min_tokens: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        bias = self.logit_bias
        _require(self, isinstance(bias, Mapping), "logit_bias", "a mapping of ids to numbers")
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(bias)))
        self._check_drawing()
        self._check_penalties()
        self._check_end()
        self._check_report()

    def answers(self) -> tuple["SamplingParams", ...]:
        """The parameters of each of the n answers, in order: n is 1, `choice` counts on."""
        if self.n == 1:
            return (self,)
        return tuple(
            dataclasses.replace(self, n=1, choice=self.choice + index) for index in range(self.n)
        )

    def _check_drawing(self) -> None:
        for field in _INTEGERS:
            _require(self, type(getattr(self, field)) is int, field, "an integer")
        for field in _NUMBERS:
            value = getattr(self, field)
            number = type(value) in (int, float) and abs(value) <= LARGEST
            _require(self, number, field, "a finite number of 32 bits")
        _require(self, self.temperature >= 0, "temperature", ">= 0")
        _require(self, 0 <= self.top_k < 2**63, "top_k", "in [0, 2^63) (0: off)")
        _require(self, 0 < self.top_p <= 1, "top_p", "in (0, 1]")
        _require(self, 0 <= self.min_p <= 1, "min_p", "in [0, 1]")
        _require(self, -(2**63) <= self.seed < 2**64, "seed", "a 64-bit integer")
        _require(self, 1 <= self.n <= MAX_ANSWERS, "n", f"in [1, {MAX_ANSWERS}]")
        _require(self, 0 <= self.choice < 2**31 - self.n, "choice", "in [0, 2^31 - n)")

    def _check_penalties(self) -> None:
        _require(self, -2 <= self.presence_penalty <= 2, "presence_penalty", "in [-2, 2]")
        _require(self, -2 <= self.frequency_penalty <= 2, "frequency_penalty", "in [-2, 2]")
        # Less would make logits infinite, and their step fail.
        fits = 1 / 64 <= self.repetition_penalty <= 10
        _require(self, fits, "repetition_penalty", "in [1/64, 10]")
        bias = self.logit_bias
        few = len(bias) <= MAX_BIAS_ENTRIES
        _require(self, few, "logit_bias", f"at most {MAX_BIAS_ENTRIES} entries")
        small = all(type(v) in (int, float) and -100 <= v <= 100 for v in bias.values())
        _require(self, small, "logit_bias", "numbers in [-100, 100]")
        _require_ids(self, "logit_bias", tuple(bias))
        if self.allowed_token_ids is not None:
            _require_ids(self, "allowed_token_ids", self.allowed_token_ids)
            _require(self, len(self.allowed_token_ids) > 0, "allowed_token_ids", "not empty")
        _require_texts(self, "bad_words", MAX_BAD_WORDS, MAX_BAD_WORD_CHARS)

    def _check_end(self) -> None:
        _require(self, self.max_tokens >= 1, "max_tokens", ">= 1")
        fits = 0 <= self.min_tokens <= self.max_tokens
        _require(self, fits, "min_tokens", f"in [0, max_tokens = {self.max_tokens}]")
        _require_texts(self, "stop", MAX_STOP_STRINGS, MAX_STOP_CHARS)
        _require_ids(self, "stop_token_ids", self.stop_token_ids)
        few = len(self.stop_token_ids) <= MAX_STOP_IDS
        _require(self, few, "stop_token_ids", f"at most {MAX_STOP_IDS} ids")

    def _check_report(self) -> None:
        for field in ("logprobs", "prompt_logprobs"):
            value = getattr(self, field)
            fits = value is None or (type(value) is int and 0 <= value <= MAX_TOP_LOGPROBS)
            _require(self, fits, field, f"in [0, {MAX_TOP_LOGPROBS}], or None")


def check_prompt(prompt: Sequence[int], vocab: int) -> None:
    """Refuse an empty prompt, and ids that the vocabulary does not have: ValueError."""
    if not prompt:
        raise ValueError("the prompt is empty")
    if bad := [token for token in prompt if not 0 <= token < vocab]:
        raise ValueError(f"prompt token {bad[0]} is outside 0..{vocab - 1}")


def check_ids(params: SamplingParams, vocab: int) -> None:
    """Refuse token ids that the vocabulary does not have: ValueError naming the field."""
    named = {
        "logit_bias": tuple(params.logit_bias),
        "allowed_token_ids": params.allowed_token_ids or (),
        "stop_token_ids": params.stop_token_ids,
    }
    for field, ids in named.items():
        if bad := [token for token in ids if token >= vocab]:
            raise ValueError(f"{field}: token {bad[0]} is outside 0..{vocab - 1}")


def _require(of: Any, ok: bool, field: str, allowed: str) -> None:
    if not ok:
        shown = repr(getattr(of, field))
        shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
        raise ValueError(f"{field} = {shown}: must be {allowed}")


def _require_ids(of: Any, field: str, ids: Sequence[int]) -> None:
    good = isinstance(ids, tuple) and all(type(token) is int and token >= 0 for token in ids)
    _require(of, good, field, "token ids, integers >= 0")


def _require_texts(of: Any, field: str, most: int, longest: int) -> None:
    texts = getattr(of, field)
    good = isinstance(texts, tuple) and all(
        isinstance(text, str) and 1 <= len(text) <= longest for text in texts
    )
    _require(of, good, field, f"texts of 1 to {longest} characters")
    _require(of, len(texts) <= most, field, f"at most {most} texts")


@dataclass(frozen=True)
class Finish:
    """Why a request ended; `matched` is the stop token or the stop string that ended it, if one
    did: a grammar that is complete ends a request too."""

    reason: FinishReason
    matched: int | str | None = None


@dataclass(kw_only=True, slots=True)
class Step:
    """What one step committed.

    token_ids: the new tokens, the stop token included. drafted: the drafts that were verified, none
    at the first step. accepted: how many of token_ids were drafts; the first `accepted` ones are,
    the i-th by MTP depth i. pieces: the text that each token let out. finish_reason: set on a
    request's last step; `matched` as in Finish.
    """

    token_ids: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: int
    finish_reason: FinishReason | None
    matched: int | str | None = None
    pieces: tuple[str, ...] = ()
