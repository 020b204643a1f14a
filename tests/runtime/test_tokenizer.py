"""Tokenizer and Detokenizer against the tokenizers library, on text cut at every place.

The vocabulary is trained here, small enough that most characters are split over several tokens,
which is what a stream of tokens has to survive.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.tokenizer import Detokenizer, Tokenizer, TokenizerError
from tests.runtime.tiny_tokenizer import BOS, EOS, IM_END, VOCAB_SIZE, tiny_core

TOKENIZER = Tokenizer(tiny_core(), vocab_size=VOCAB_SIZE, bos_id=0)

SAMPLES = [
    "def read(path):\n    return path\n",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01 mixed with ascii \u65e5\u672c\u8a9e",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 family \U0001f1e9\U0001f1ea flag \u2764\ufe0f",
    "caf\u00e9 na\u00efve \u00df e\u0301 combining",
    f"before{IM_END}after \u00e9{EOS}",
    "",
]


def stream(ids: list[int], *, skip_special: bool = True) -> list[str]:
    """The pieces of one stream, the flush last."""
    detokenizer = Detokenizer(TOKENIZER, skip_special=skip_special)
    return [detokenizer.push(token_id) for token_id in ids] + [detokenizer.finish()]


def check_stream(ids: list[int]) -> None:
    for skip_special in (True, False):
        pieces = stream(ids, skip_special=skip_special)
        assert "".join(pieces) == TOKENIZER.decode(ids, skip_special=skip_special)
        for piece in pieces:
            piece.encode()


@pytest.mark.parametrize("text", SAMPLES)
def test_stream_equals_decode_for_every_cut(text: str) -> None:
    ids = TOKENIZER.encode(text)
    for end in range(len(ids) + 1):
        check_stream(ids[:end])
        check_stream(ids[end:])


@pytest.mark.parametrize("text", SAMPLES[:4])
def test_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text(max_size=40))
@settings(deadline=None)
def test_round_trip_of_any_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    check_stream(ids)
    plain = TOKENIZER.decode(ids, skip_special=False)
    assert plain.removeprefix(BOS) == text.removeprefix(BOS)


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=60))
@settings(deadline=None)
def test_any_ids_even_broken_utf8_and_padding(ids: list[int]) -> None:
    check_stream(ids)


def test_pieces_come_as_soon_as_a_character_is_whole() -> None:
    ids = TOKENIZER.encode("a\U0001f600b")[1:]
    texts = [TOKENIZER.decode(ids[:end]) for end in range(len(ids) + 1)]
    so_far = ""
    for piece, text in zip(stream(ids), texts[1:], strict=False):
        so_far += piece
        assert so_far == text.rstrip("\ufffd")


def test_incomplete_tail_is_flushed_at_the_end() -> None:
    ids = TOKENIZER.encode("\U0001f600")[1:]
    assert len(ids) > 1, "the sample must be split over tokens"
    assert stream(ids[:-1])[-1] == "\ufffd"
    assert "".join(stream(ids[:-1])) == "\ufffd"


def test_bos_exactly_once() -> None:
    assert TOKENIZER.encode("hello")[0] == 0
    assert TOKENIZER.encode("hello").count(0) == 1
    assert TOKENIZER.encode(BOS + "hello") == TOKENIZER.encode("hello")
    assert TOKENIZER.encode("") == [0]


def test_a_post_processor_does_not_add_a_second_bos() -> None:
    core = tiny_core()
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BOS} $A", pair=None, special_tokens=[(BOS, 0)]
    )
    tokenizer = Tokenizer(core, vocab_size=VOCAB_SIZE, bos_id=0)
    assert tokenizer.encode("hello") == TOKENIZER.encode("hello")


def test_settings_of_the_file_do_not_cut_or_pad_a_prompt() -> None:
    core = tiny_core()
    core.enable_truncation(max_length=4)
    core.enable_padding(length=64)
    tokenizer = Tokenizer(core, vocab_size=VOCAB_SIZE, bos_id=0)
    text = "a prompt that is longer than four tokens"
    assert tokenizer.encode(text) == TOKENIZER.encode(text)


def test_special_tokens_by_name() -> None:
    assert TOKENIZER.id_of(IM_END) == 4
    assert TOKENIZER.is_special(4)
    assert not TOKENIZER.is_special(TOKENIZER.id_of("<think>"))
    assert not TOKENIZER.is_special(VOCAB_SIZE - 1)
    with pytest.raises(TokenizerError, match="<nothing>"):
        TOKENIZER.id_of("<nothing>")


def test_markup_is_text_even_where_the_file_calls_it_special() -> None:
    core = tiny_core()
    core.add_special_tokens(["<think>", "<tool_call>"])
    tokenizer = Tokenizer(core, vocab_size=VOCAB_SIZE, bos_id=0)
    text = "<think>a</think><tool_call>"
    ids = tokenizer.encode(f"{text}{IM_END}")
    assert core.decode(ids) == "a</think>", "the file calls two of them special"
    assert tokenizer.decode(ids) == text
    detokenizer = Detokenizer(tokenizer)
    assert "".join(map(detokenizer.push, ids)) == text


def test_cost_of_a_token_does_not_grow_with_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the bytes that go through the decoder: each token's own, once."""
    rng = random.Random(0)
    ids = [rng.randrange(VOCAB_SIZE) for _ in range(2000)]
    seen = 0
    spell: Callable[[int], bytes] = TOKENIZER.bytes_of

    def counting(token_id: int) -> bytes:
        nonlocal seen
        piece = spell(token_id)
        seen += len(piece)
        return piece

    monkeypatch.setattr(TOKENIZER, "bytes_of", counting)
    stream(ids, skip_special=False)
    assert seen == sum(len(spell(token_id)) for token_id in ids)


def test_open_reads_tokenizer_json_alone(tmp_path: Path) -> None:
    tiny_core().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    tokenizer = Tokenizer.open(tmp_path, vocab_size=VOCAB_SIZE, bos_id=0)
    assert tokenizer.encode(SAMPLES[1]) == TOKENIZER.encode(SAMPLES[1])
    assert tokenizer.bos_token == BOS


def test_errors_name_file_and_token(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: no such file"):
        Tokenizer.open(tmp_path, vocab_size=VOCAB_SIZE, bos_id=0)
    (tmp_path / "tokenizer.json").write_text("{not json")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.open(tmp_path, vocab_size=VOCAB_SIZE, bos_id=0)
    with pytest.raises(TokenizerError, match="vocab_size is 100"):
        Tokenizer(tiny_core(), vocab_size=100, bos_id=0)
    with pytest.raises(TokenizerError, match="bos_token_id"):
        Tokenizer(tiny_core(), vocab_size=VOCAB_SIZE, bos_id=VOCAB_SIZE - 1)


@pytest.mark.parametrize("text", ["\udcff", "a \ud83d b"])
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(TokenizerError, match=f"at character {0 if text[0] != 'a' else 2}"):
        TOKENIZER.encode(text)


def test_other_decoders_are_refused() -> None:
    core = tiny_core()
    core.decoder = tokenizers.decoders.WordPiece()
    with pytest.raises(TokenizerError, match="WordPiece"):
        Tokenizer(core, vocab_size=VOCAB_SIZE, bos_id=0)
