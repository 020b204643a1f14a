"""Where a request ends, token by token: stop token, stop string, end of grammar, length; the first
wins, and in this order where one token meets several.

Knows committed tokens and the text they make. Only verified tokens come here: a draft that proposes
a stop token and is rejected never finishes a request. Keeps true: nothing after the end is emitted,
shown or counted; the same tokens give the same text and end however they are cut into steps; the
pieces of text, joined, are the whole text.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from runtime.request import Finish, SamplingParams
from runtime.tokenizer import Detokenizer, Tokenizer


@dataclass(kw_only=True, slots=True)
class Scanned:
    """What of some committed tokens is emitted, and the text that each of them lets out."""

    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    finish: Finish | None


class Scanner:
    """The end and the text of one request.

    A stop token counts as emitted and shows no text. A stop string is found in the text across
    tokens and steps; the token that completes it counts, the text is cut where the match begins.
    With `include_stop_str` both are shown. Neither ends an answer of fewer than `min_tokens`: these
    many tokens stand before a stop token, or make up to the end of a stop string. Without a
    tokenizer there is no text, and ValueError for stop strings.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos_ids: Collection[int] = (),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if params.stop and tokenizer is None:
            raise ValueError("stop: stop strings need a tokenizer")
        self._params = params
        self._stop_ids = stop_ids(params, eos_ids)
        self._detokenizer = tokenizer and Detokenizer(
            tokenizer, skip_special=params.skip_special_tokens
        )
        self._held = ""  # text that may be the beginning of a stop string
        self._count = 0
        self._finish: Finish | None = None

    def push(self, tokens: Sequence[int], *, ended: int | None = None) -> Scanned:
        """Scan what one step committed. `ended`: after so many of these tokens the grammar is
        complete (Rules.commit)."""
        assert self._finish is None, "the request has ended"
        pieces: list[str] = []
        for index, token in enumerate(tokens):
            pieces.append(self._token(token, ended == index + 1))
            if self._finish is not None:
                break
        return Scanned(
            token_ids=tuple(tokens[: len(pieces)]), pieces=tuple(pieces), finish=self._finish
        )

    def _token(self, token: int, ended: bool) -> str:
        params = self._params
        self._count += 1
        if token in self._stop_ids and self._count > params.min_tokens:
            self._finish = Finish(reason="stop", matched=token)
            return self._held + self._last(self._text(token) if params.include_stop_str else "")
        text = self._held + self._text(token)
        enough = self._count >= params.min_tokens
        found = first_match(text, params.stop, len(self._held)) if enough else None
        if found is not None:
            begin, end = found
            self._finish = Finish(reason="stop", matched=text[begin:end])
            return text[: end if params.include_stop_str else begin]
        if ended or self._count == params.max_tokens:
            self._finish = Finish(reason="stop" if ended else "length")
            return self._last(text)
        kept = len(text) - beginning(text, params.stop)
        self._held = text[kept:]
        return text[:kept]

    def _text(self, token: int) -> str:
        return self._detokenizer.push(token) if self._detokenizer else ""

    def _last(self, text: str) -> str:
        """`text` and an incomplete last character."""
        return text + (self._detokenizer.finish() if self._detokenizer else "")


def stop_ids(params: SamplingParams, eos_ids: Collection[int]) -> frozenset[int]:
    """The tokens that end a request: its own and, unless it ignores them, the model's."""
    return frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else eos_ids)


def first_match(text: str, stops: Sequence[str], known: int = 0) -> tuple[int, int] | None:
    """(begin, end) of the stop string that ends first in `text`, the longest of several there;
    only those that end behind the first `known` characters."""
    ends: list[tuple[int, int]] = []
    for stop in stops:
        begin = text.find(stop, max(0, known + 1 - len(stop)))
        if begin >= 0:
            ends.append((begin + len(stop), begin))
    if not ends:
        return None
    end, begin = min(ends)
    return begin, end


def beginning(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop string."""
    longest = max(map(len, stops), default=1) - 1
    for count in range(min(longest, len(text)), 0, -1):
        tail = text[-count:]
        if any(stop.startswith(tail) for stop in stops):
            return count
    return 0
