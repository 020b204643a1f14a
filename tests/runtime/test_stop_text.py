"""The scanner's text: stop strings across tokens and steps, what is held back, every cut alike.

The reference below knows nothing of steps or of text held back: it decodes the first 1, 2, 3...
tokens as a whole and looks at the bytes.
"""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.request import Finish, SamplingParams
from runtime.stop import Scanned, Scanner
from runtime.tokenizer import Tokenizer
from tests.runtime.tiny_tokenizer import VOCAB_SIZE, tiny_core

TOKENIZER = Tokenizer(tiny_core(), vocab_size=VOCAB_SIZE, bos_id=0)
EOS, CAFE, FACE = 1, "caf\u00e9", "\U0001f600"
# Tokens of one byte or more, parts of characters among them; special ones; padding ids.
IDS = [*range(20, 340), 0, EOS, 3, 380]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text)[1:]


def scan(params: SamplingParams, steps: Sequence[Sequence[int]]) -> list[Scanned]:
    """The steps up to the end."""
    scanner = Scanner(params, eos_ids=(EOS,), tokenizer=TOKENIZER)
    out: list[Scanned] = []
    for tokens in steps:
        out.append(scanner.push(tokens))
        if out[-1].finish:
            break
    return out


def joined(steps: Sequence[Scanned]) -> tuple[list[int], str, Finish | None]:
    assert all(len(step.pieces) == len(step.token_ids) for step in steps)
    ids = [token for step in steps for token in step.token_ids]
    text = "".join(piece for step in steps for piece in step.pieces)
    return ids, text, steps[-1].finish


def cut(ids: Sequence[int], widths: Sequence[int]) -> list[Sequence[int]]:
    steps, at = [], 0
    for width in itertools.cycle(widths):
        if at >= len(ids):
            return steps
        steps.append(ids[at : at + width])
        at += width
    return steps


def reference(params: SamplingParams, ids: Sequence[int]) -> tuple[list[int], str, Finish]:
    """`ids` ends at max_tokens at the latest."""
    raw, shown = b"", b""
    for count, token in enumerate(ids, start=1):
        stops = (*params.stop_token_ids, EOS)
        if token in stops and count > params.min_tokens:
            return list(ids[:count]), shown.decode(errors="replace"), Finish("stop", token)
        raw += b"" if TOKENIZER.is_special(token) else TOKENIZER.bytes_of(token)
        ends = [
            (end, end - len(stop.encode()), stop)
            for stop in params.stop
            for end in range(len(shown) + 1, len(raw) + 1)
            if raw[:end].endswith(stop.encode())
        ]
        shown = raw
        if ends and count >= params.min_tokens:
            end, begin, stop = min(ends)
            text = raw[: end if params.include_stop_str else begin].decode(errors="replace")
            return list(ids[:count]), text, Finish("stop", stop)
    return list(ids), shown.decode(errors="replace"), Finish("length")


def finish_at(ids: Sequence[int], **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=len(ids), **fields)  # type: ignore[arg-type]


STOPS = st.lists(
    st.sampled_from(["a", "ab", "aab", "\u00e9", CAFE, FACE, "\u4f60\u597d", "abab", "ba"]),
    max_size=3,
    unique=True,
).map(tuple)
TEXTS = st.text(alphabet=f"aab{CAFE}\u4f60\u597d{FACE} ", min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    ids=st.one_of(TEXTS.map(encode), st.lists(st.sampled_from(IDS), min_size=1, max_size=12)),
    stop=STOPS,
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    minimum=st.integers(0, 4),
    include=st.booleans(),
)
@example(ids=[EOS, 66, EOS, 67], stop=(), widths=[3], minimum=1, include=True)
@example(ids=encode("xab"), stop=("ab",), widths=[2], minimum=0, include=False)  # at the cap
@example(ids=encode("a" * 5), stop=("aab", "ab"), widths=[2], minimum=3, include=False)
# Text is held back, or a character incomplete, where a stop token comes.
@example(ids=[*encode("xa"), EOS], stop=("ab",), widths=[1], minimum=0, include=False)
@example(ids=[*encode(FACE)[:-1], EOS], stop=("ab",), widths=[1], minimum=0, include=False)
def test_every_cut_gives_the_text_and_the_end_of_the_whole(
    ids: list[int], stop: tuple[str, ...], widths: list[int], minimum: int, include: bool
) -> None:
    params = finish_at(ids, stop=stop, min_tokens=min(minimum, len(ids)), include_stop_str=include)
    assert joined(scan(params, cut(ids, widths))) == reference(params, ids)


@pytest.mark.parametrize("widths", [(1,), (2,), (3,), (4,), (1, 4)])
def test_text_that_may_begin_a_stop_string_is_held_and_let_out(widths: tuple[int, ...]) -> None:
    """Fault I4: nothing is lost at the end, and nothing comes out that would have to be undone."""
    ids = encode("xy<stopxy<sto")
    params = finish_at(ids, stop=("<stop>",))
    steps = scan(params, cut(ids, widths))
    assert joined(steps)[1] == "xy<stopxy<sto"
    shown = ""
    for step in steps[:-1]:
        shown += "".join(step.pieces)
        assert not shown.endswith(("<", "<s", "<st", "<sto", "<stop"))


def test_the_token_that_completes_a_stop_string_counts_and_the_rest_does_not() -> None:
    ids = encode("one END two")
    [step] = scan(finish_at(ids, stop=("END",)), [ids])
    assert TOKENIZER.decode(step.token_ids).startswith("one END")
    assert "".join(step.pieces) == "one "
    assert step.finish == Finish("stop", "END")
    assert len(step.token_ids) < len(ids)


def test_a_stop_token_has_no_text_unless_asked_for() -> None:
    ids = [*encode("ab"), 300]
    for include in (False, True):
        params = SamplingParams(stop_token_ids=(300,), include_stop_str=include)
        shown = joined(scan(params, [ids]))[1]
        assert shown == TOKENIZER.decode(ids if include else ids[:-1])


def test_special_tokens_are_text_only_if_they_are_not_skipped() -> None:
    ids = [*encode("ab"), 3, *encode("c")]
    assert joined(scan(finish_at(ids), [ids]))[1] == "abc"
    shown = joined(scan(finish_at(ids, skip_special_tokens=False), [ids]))[1]
    assert shown == "ab<|im_start|>c"


def test_the_end_of_a_grammar_comes_before_length_and_behind_stops() -> None:
    ids = encode("abc")
    scanner = Scanner(finish_at(ids), tokenizer=TOKENIZER)
    done = scanner.push([*ids, *ids], ended=len(ids))
    assert (list(done.token_ids), done.finish) == (ids, Finish("stop"))
    stopped = Scanner(SamplingParams(stop=("c",)), tokenizer=TOKENIZER).push(ids, ended=len(ids))
    assert stopped.finish == Finish("stop", "c")


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="stop strings need a tokenizer"):
        Scanner(SamplingParams(stop=("a",)))
    assert Scanner(SamplingParams()).push([5, 6]).pieces == ("", "")
