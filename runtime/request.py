"""What a request asks for and what comes back: plain frozen data, validated once.

Knows ranges of parameters and limits on their number. Does not know the model, the tokenizer or a
transport: token ids are checked against a vocabulary by `check_ids`. Keeps true: all that is wrong
is told at once; nothing that a SamplingParams holds can change after it was checked.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

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

_NUMBER = "a finite number of 32 bits"
_INTEGERS = ("top_k", "seed", "choice", "n", "max_tokens", "min_tokens")
_NUMBERS = (
    *("temperature", "top_p", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


class Wrong(NamedTuple):
    """A field, its value as it is shown, and what it must be."""

    field: str
    shown: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.field} = {self.shown}: must be {self.allowed}"


class ParamsError(ValueError):
    """Fields that are out of range: all of them."""

    def __init__(self, wrong: Sequence[Wrong]) -> None:
        super().__init__(wrong)  # what a copy is made of
        self.wrong = tuple(wrong)

    def __str__(self) -> str:
        return "; ".join(map(str, self.wrong))


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
        checks, kinds = _Checks(self), get_args(ConstraintKind)
        checks.require(self.kind in kinds, "kind", f"one of {', '.join(kinds)}")
        has_source = self.kind not in ("json_object", "choice")
        allowed = f"1 to {MAX_SOURCE_CHARS} characters" if has_source else "empty"
        fits = 1 <= len(self.source) <= MAX_SOURCE_CHARS
        checks.require(fits if has_source else not self.source, "source", allowed)
        if self.kind != "choice":
            checks.require(self.choices == (), "choices", "empty")
        elif checks.texts("choices", MAX_CHOICES, MAX_SOURCE_CHARS):
            fits = 1 <= sum(map(len, self.choices)) <= MAX_SOURCE_CHARS
            checks.require(fits, "choices", f"1 to {MAX_SOURCE_CHARS} characters together")
        checks.done()


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
        checks, bias = _Checks(self), self.logit_bias
        self._check_types(checks)
        checks.done()  # ranges are of numbers
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(bias)))
        self._check_drawing(checks)
        self._check_penalties(checks)
        self._check_end(checks)
        self._check_report(checks)
        checks.done()

    def answers(self) -> tuple["SamplingParams", ...]:
        """The parameters of each of the n answers, in order: n is 1, `choice` counts on."""
        if self.n == 1:
            return (self,)
        return tuple(
            dataclasses.replace(self, n=1, choice=self.choice + index) for index in range(self.n)
        )

    def _check_types(self, checks: "_Checks") -> None:
        is_mapping = isinstance(self.logit_bias, Mapping)
        checks.require(is_mapping, "logit_bias", "a mapping of ids to numbers")
        for field in _INTEGERS:
            checks.require(type(getattr(self, field)) is int, field, "an integer")
        for field in _NUMBERS:
            number = type(getattr(self, field)) in (int, float)
            checks.require(number, field, _NUMBER)

    def _check_drawing(self, checks: "_Checks") -> None:
        for field in _NUMBERS:
            checks.require(abs(getattr(self, field)) <= LARGEST, field, _NUMBER)
        checks.require(self.temperature >= 0, "temperature", ">= 0")
        checks.require(0 <= self.top_k < 2**63, "top_k", "in [0, 2^63) (0: off)")
        checks.require(0 < self.top_p <= 1, "top_p", "in (0, 1]")
        checks.require(0 <= self.min_p <= 1, "min_p", "in [0, 1]")
        checks.require(-(2**63) <= self.seed < 2**64, "seed", "a 64-bit integer")
        if checks.require(1 <= self.n <= MAX_ANSWERS, "n", f"in [1, {MAX_ANSWERS}]"):
            checks.require(0 <= self.choice < 2**31 - self.n, "choice", "in [0, 2^31 - n)")

    def _check_penalties(self, checks: "_Checks") -> None:
        checks.require(-2 <= self.presence_penalty <= 2, "presence_penalty", "in [-2, 2]")
        checks.require(-2 <= self.frequency_penalty <= 2, "frequency_penalty", "in [-2, 2]")
        # Less would make logits infinite, and their step fail.
        fits = 1 / 64 <= self.repetition_penalty <= 10
        checks.require(fits, "repetition_penalty", "in [1/64, 10]")
        bias = self.logit_bias
        few = len(bias) <= MAX_BIAS_ENTRIES
        checks.require(few, "logit_bias", f"at most {MAX_BIAS_ENTRIES} entries")
        small = all(type(v) in (int, float) and -100 <= v <= 100 for v in bias.values())
        checks.require(small, "logit_bias", "numbers in [-100, 100]")
        checks.ids("logit_bias", tuple(bias))
        allowed = self.allowed_token_ids
        if allowed is not None and checks.ids("allowed_token_ids", allowed):
            checks.require(len(allowed) > 0, "allowed_token_ids", "not empty")
        checks.texts("bad_words", MAX_BAD_WORDS, MAX_BAD_WORD_CHARS)

    def _check_end(self, checks: "_Checks") -> None:
        if checks.require(self.max_tokens >= 1, "max_tokens", ">= 1"):
            fits = 0 <= self.min_tokens <= self.max_tokens
            checks.require(fits, "min_tokens", f"in [0, max_tokens = {self.max_tokens}]")
        checks.texts("stop", MAX_STOP_STRINGS, MAX_STOP_CHARS)
        if checks.ids("stop_token_ids", self.stop_token_ids):
            few = len(self.stop_token_ids) <= MAX_STOP_IDS
            checks.require(few, "stop_token_ids", f"at most {MAX_STOP_IDS} ids")

    def _check_report(self, checks: "_Checks") -> None:
        for field in ("logprobs", "prompt_logprobs"):
            value = getattr(self, field)
            fits = value is None or (type(value) is int and 0 <= value <= MAX_TOP_LOGPROBS)
            checks.require(fits, field, f"in [0, {MAX_TOP_LOGPROBS}], or None")


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


class _Checks:
    """Fields of one object looked at in turn: the first thing that is wrong with each is kept."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self._wrong: dict[str, Wrong] = {}

    def require(self, ok: bool, field: str, allowed: str) -> bool:
        if not ok:
            shown = repr(getattr(self._of, field))
            shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
            self._wrong.setdefault(field, Wrong(field, shown, allowed))
        return ok

    def ids(self, field: str, ids: Sequence[int]) -> bool:
        good = isinstance(ids, tuple) and all(type(token) is int and token >= 0 for token in ids)
        return self.require(good, field, "token ids, integers >= 0")

    def texts(self, field: str, most: int, longest: int) -> bool:
        texts = getattr(self._of, field)
        good = isinstance(texts, tuple) and all(
            isinstance(text, str) and 1 <= len(text) <= longest for text in texts
        )
        good = self.require(good, field, f"texts of 1 to {longest} characters")
        return good and self.require(len(texts) <= most, field, f"at most {most} texts")

    def done(self) -> None:
        """Raises ParamsError."""
        if self._wrong:
            raise ParamsError(list(self._wrong.values()))


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
