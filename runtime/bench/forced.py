"""Decode steps whose acceptance is decided beforehand, so that speed shows apart from drafts.

A plain greedy continuation of each prompt is recorded first. A forced step then gets drafts of
which a chosen number repeat that continuation and the next one does not, instead of the engine's
own. The engine does all its work: it verifies every row, accepts, runs the MTP chain and reads back
drafts, which are thrown away. Keeps true: the committed tokens are the continuation, step by step,
or the measurement stops; rejected rows hold tokens that take other experts, as real ones do.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runtime.engine import Engine
from runtime.exchange import Turn
from runtime.request import SamplingParams

GREEDY = SamplingParams(ignore_eos=True)


class ForcedError(RuntimeError):
    """The engine committed something else than plain decoding did."""


@dataclass(frozen=True, kw_only=True)
class Track:
    """A prompt and its plain continuation, long enough for the steps to come."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def record(engine: Engine, prompt: Sequence[int], tokens: int) -> Track:
    """Decode `tokens` tokens plainly in slot 0."""
    made = list(engine.prefill(prompt, 0, GREEDY).tokens)
    while len(made) < tokens:
        turn = Turn(slot=0, position=len(prompt) + len(made) - 1, token=made[-1])
        made += engine.decode([turn], draft=False)[0].tokens
    return Track(prompt=tuple(prompt), tokens=tuple(made))


def accepted_counts(length: float, width: int) -> Iterator[int]:
    """Drafts to accept, step by step: whole numbers whose mean is length - 1, spread evenly.

    Raises ValueError when no step of `width` rows commits `length` tokens.
    """
    if not 1 <= length <= width:
        raise ValueError(f"acceptance = {length}: a step of {width} rows commits 1 to {width}")

    def counts() -> Iterator[int]:
        owed = 0.0
        while True:
            owed += length - 1
            # Half a unit of slack: sums of a fraction such as 1/3 fall short of a whole number.
            count = int(owed + 1e-9)
            owed -= count
            yield count

    return counts()


def tokens_needed(length: float, width: int, steps: int) -> int:
    """How long a Track has to be for that many forced steps."""
    counts = accepted_counts(length, width)
    return 1 + sum(1 + count for count in itertools.islice(counts, steps)) + width


def prefill(engine: Engine, tracks: Sequence[Track]) -> list[float]:
    """Load each track's prompt into a slot of its own: seconds of each."""
    seconds = []
    for slot, track in enumerate(tracks):
        start = time.perf_counter()
        committed = engine.prefill(track.prompt, slot, GREEDY)
        seconds.append(time.perf_counter() - start)
        _check(committed.tokens, track.tokens[:1])
    return seconds


def run(
    engine: Engine, tracks: Sequence[Track], *, width: int, length: float, steps: int
) -> list[float]:
    """`steps` forced steps of `width` rows a slot, right after `prefill`: seconds of each.

    Raises ForcedError when a token differs from the tracks'.
    """
    counts = accepted_counts(length, width)
    seconds = []
    done = 0  # index of the last committed token
    for accept in itertools.islice(counts, steps):
        turns = forced_turns(tracks, done, accept, width, engine.config.vocab_size)
        start = time.perf_counter()
        committed = engine.decode(turns, draft=width > 1)
        seconds.append(time.perf_counter() - start)
        for track, made in zip(tracks, committed, strict=True):
            _check(made.tokens, track.tokens[done + 1 : done + 2 + accept])
        done += 1 + accept
    return seconds


def forced_turns(
    tracks: Sequence[Track], done: int, accept: int, width: int, vocab: int
) -> list[Turn]:
    """The step after token `done` of each track: `accept` right drafts, then wrong ones."""
    turns = []
    for slot, track in enumerate(tracks):
        assert len(track.tokens) >= done + width, "the continuation is too short"
        ahead = track.tokens[done + 1 : done + width]
        wrong = [(token + vocab // 2) % vocab for token in ahead[accept:]]
        position = len(track.prompt) + done
        turns.append(
            Turn(
                slot=slot,
                position=position,
                token=track.tokens[done],
                drafts=(*ahead[:accept], *wrong),
            )
        )
    return turns


def _check(made: Sequence[int], expected: Sequence[int]) -> None:
    if tuple(made) != tuple(expected):
        raise ForcedError(
            f"a step committed {list(made)}, plain decoding gave {list(expected)}: either the "
            "engine's result depends on the width, or two logits tie"
        )
