"""The training data: corpus, tokenizer and packed rows are functions of their inputs alone.

Knows a corpus and a tokenizer made on the spot; trains no model.
"""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from models.recipe.corpus import is_held_out, read_corpus
from models.recipe.data import ALIGN, ANSWER, ROW, START, TOKEN, as_batch, encode_chat, pack_rows
from models.recipe.tasks import generate
from models.recipe.tokenizer import SPECIALS, ChatRenderer, save_tokenizer, train_tokenizer

TEXT = "def read(path):\n\treturn open(path).read()  # caf\u00e9 \u4e2d 12\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([TEXT, "hello world\n" * 9], vocabulary=len(SPECIALS) + 256 + 20)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for name in ("a.py", "b/c.py", "test/skipped.py", "site-packages/skipped.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(f"# {name}\r\n".encode())
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    return tmp_path


def test_corpus_is_read_in_order_and_changes_show_in_the_digest(library: Path) -> None:
    corpus = read_corpus(library)
    assert corpus.train | corpus.held_out == {"a.py": "# a.py\n", "b/c.py": "# b/c.py\n"}
    assert all(is_held_out(name) for name in corpus.held_out)
    assert read_corpus(library).digest == corpus.digest
    (library / "a.py").write_text("# changed\n")
    assert read_corpus(library).digest != corpus.digest


def test_no_library_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no library source"):
        read_corpus(tmp_path)


def test_tokenizer_gives_any_text_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (TEXT, "\u00e9\U0001f600 \x00", "<think>\n12 + 3</think>"):
        ids = again.encode(text, add_special_tokens=False).ids
        assert again.decode(ids, skip_special_tokens=False) == text
    assert [again.token_to_id(token) for token in SPECIALS] == list(range(len(SPECIALS)))


def test_tokenizer_training_is_reproducible(tokenizer: Tokenizer) -> None:
    again = train_tokenizer([TEXT, "hello world\n" * 9], vocabulary=tokenizer.get_vocab_size())
    assert again.to_str() == tokenizer.to_str()


def test_too_little_text_for_the_vocabulary_is_an_error() -> None:
    with pytest.raises(ValueError, match="the texts give"):
        train_tokenizer(["a"], vocabulary=3000)


def test_chats_are_packed_at_regions_and_only_answers_count_fully(tokenizer: Tokenizer) -> None:
    renderer, stream = ChatRenderer(), generate(5, held_out=False)
    encoded = (encode_chat(tokenizer, renderer, next(stream)) for _ in range(400))
    rows = pack_rows(encoded, 6)
    assert rows.shape == (6, ROW)
    assert (np.flatnonzero(rows.ravel() & START) % ALIGN == 0).all()
    batch = as_batch(np.zeros((0, ROW + 1), np.int64), rows)
    assert (batch.tokens[:, :-1] == rows & TOKEN).all()
    answers = (rows[:, 1:] & ANSWER) > 0
    assert (batch.weights[:, :-1][answers] == 2.0).all()
    # nothing is to be learnt about how the next chat begins
    assert (batch.weights[:, :-1][(rows[:, 1:] & START) > 0] == 0.0).all()
    assert (batch.starts <= np.arange(ROW)).all()
