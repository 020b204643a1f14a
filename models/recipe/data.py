"""Packed training data: token files and the batch of every step.

Knows how library text and chats become rows of ROW tokens, and that a batch is a pure function of
(seed, step). Does not know the model. Keeps true: a chat starts at a multiple of 8 in its row, so
regions and windows fall as they will when it is alone; a library row starts with bos.
"""

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from models.recipe import words
from models.recipe.corpus import Corpus, read_corpus
from models.recipe.tasks import Chat, generate
from models.recipe.tokenizer import ChatRenderer, save_tokenizer, train_tokenizer

ROW = 512
ALIGN = 8  # tokens of a region
BOS_ID, PAD_ID = 0, 2
ANSWER = 0x8000  # flag: the token belongs to an answer
START = 0x4000  # flag: the token opens a chat
TOKEN = 0x0FFF
CHAT_ROWS = 15000
HELD_OUT_CHATS = 600
PROMPT_WEIGHT, ANSWER_WEIGHT = 0.2, 2.0
SEED = 5


@dataclass(frozen=True, kw_only=True)
class Data:
    """uint16 arrays: library streams [n], chat rows [n, ROW] with flags; held-out chats as text."""

    library: np.ndarray
    library_held_out: np.ndarray
    chats: np.ndarray
    chats_held_out: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch: tokens [B, T+1] int64, first position of each token's segment [B, T] int64,
    loss weight of predicting token t+1 at t [B, T] float32."""

    tokens: np.ndarray
    starts: np.ndarray
    weights: np.ndarray


def encode_chat(tokenizer: Tokenizer, renderer: ChatRenderer, chat: Chat) -> np.ndarray:
    """A chat's tokens with START and ANSWER flags, uint16 [n]."""
    prompt = tokenizer.encode(renderer.prompt(chat), add_special_tokens=False).ids
    answer = tokenizer.encode(renderer.answer(chat), add_special_tokens=False).ids
    row = np.array([*prompt, *answer], dtype=np.uint16)
    row[len(prompt) :] |= ANSWER
    row[0] |= START
    return row


def pack_rows(chats: Iterable[np.ndarray], rows: int) -> np.ndarray:
    """Put chats one after the other, each at a multiple of ALIGN, into `rows` rows of ROW tokens.

    A chat longer than a row is left out; one that does not fit any more opens the next row.
    """
    packed = np.full((rows, ROW), PAD_ID, dtype=np.uint16)
    row, at = 0, 0
    for chat in chats:
        if len(chat) > ROW:
            continue
        if at + len(chat) > ROW:
            row, at = row + 1, 0
            if row == rows:
                return packed
        packed[row, at : at + len(chat)] = chat
        at = -(-(at + len(chat)) // ALIGN) * ALIGN
    raise ValueError(f"the chats fill only {row} of {rows} rows")


def _stream(tokenizer: Tokenizer, texts: dict[str, str]) -> np.ndarray:
    encodings = tokenizer.encode_batch_fast(list(texts.values()), add_special_tokens=False)
    return np.concatenate([np.array([BOS_ID, *one.ids], dtype=np.uint16) for one in encodings])


def _tokenizer_texts(corpus: Corpus, renderer: ChatRenderer) -> Iterable[str]:
    """The library, a sample of chats, and each task word often enough to become one token."""
    yield from corpus.train.values()
    for chat in itertools.islice(generate(SEED, held_out=False), 12000):
        yield renderer.prompt(chat) + renderer.answer(chat)
    for word in (*words.WORDS, *words.NAMES, *words.CITIES, *words.COLORS, *words.JOBS):
        yield f"{word}\n {word}\n" * 1000


def build(work: Path) -> None:
    """Write the token files, the tokenizer and data.json into `work`."""
    corpus, renderer = read_corpus(), ChatRenderer()
    tokenizer = train_tokenizer(_tokenizer_texts(corpus, renderer))
    save_tokenizer(tokenizer, work / "tokenizer")
    pools = {
        side: (encode_chat(tokenizer, renderer, chat) for chat in chats)
        for side, chats in (
            ("train", generate(SEED, held_out=False)),
            ("held", itertools.islice(generate(SEED, held_out=True), HELD_OUT_CHATS)),
        )
    }
    arrays = {
        "library": _stream(tokenizer, corpus.train),
        "library_held_out": _stream(tokenizer, corpus.held_out),
        "chats": pack_rows(pools["train"], CHAT_ROWS),
        # one chat a row: evaluation wants each alone
        "chats_held_out": np.stack([_alone(chat) for chat in pools["held"]]),
    }
    for name, array in arrays.items():
        np.save(work / f"{name}.npy", array)
    facts = {
        "corpus_sha256": corpus.digest,
        "corpus_is_the_recorded_one": corpus.matches_recorded,
        "library_files": len(corpus.train),
        "library_files_held_out": len(corpus.held_out),
        "library_characters": sum(map(len, corpus.train.values())),
        **{f"{name}_tokens": int(array.size) for name, array in arrays.items()},
    }
    (work / "data.json").write_text(json.dumps(facts, indent=1) + "\n")


def _alone(chat: np.ndarray) -> np.ndarray:
    row = np.full(ROW, PAD_ID, dtype=np.uint16)
    row[: len(chat)] = chat
    return row


def load(work: Path) -> Data:
    """Read what `build` wrote. Raises ValueError when it is not there."""
    names = ("library", "library_held_out", "chats", "chats_held_out")
    missing = [name for name in names if not (work / f"{name}.npy").exists()]
    if missing:
        raise ValueError(f"no packed data {missing} in {work}: run --stage data first")
    return Data(**{name: np.load(work / f"{name}.npy") for name in names})


def library_rows(stream: np.ndarray, offsets: np.ndarray, length: int = ROW) -> np.ndarray:
    """Rows of bos and the `length` tokens after each offset, int64 [n, length + 1]."""
    rows = np.empty((len(offsets), length + 1), dtype=np.int64)
    rows[:, 0] = BOS_ID
    for row, offset in zip(rows, offsets, strict=True):
        row[1:] = stream[offset : offset + length]
    return rows


def as_batch(library: np.ndarray, chats: np.ndarray) -> Batch:
    """Library rows [n, T+1] int64 and flagged chat rows [m, T] uint16 as one batch."""
    flags = np.concatenate([chats, np.full((len(chats), 1), PAD_ID, np.uint16)], axis=1)
    chat_tokens = (flags & TOKEN).astype(np.int64)
    opens = np.where(flags[:, :-1] & START, np.arange(chats.shape[1]), 0)
    chat_starts = np.maximum.accumulate(opens, axis=1)
    follows = flags[:, 1:]
    weights = np.where(follows & ANSWER, ANSWER_WEIGHT, PROMPT_WEIGHT).astype(np.float32)
    weights[((follows & TOKEN) == PAD_ID) | ((follows & START) > 0)] = 0.0
    return Batch(
        tokens=np.concatenate([library, chat_tokens]),
        starts=np.concatenate([np.zeros_like(library[:, :-1]), chat_starts]),
        weights=np.concatenate([np.ones(library[:, :-1].shape, np.float32), weights]),
    )


def batch_at(data: Data, seed: int, step: int, rows: int, chat_rows: int) -> Batch:
    """The batch of `step`: `chat_rows` chat rows and `rows - chat_rows` library rows."""
    rng = np.random.default_rng([seed, step])
    offsets = rng.integers(0, len(data.library) - ROW, rows - chat_rows)
    chosen = rng.integers(0, len(data.chats), chat_rows)
    return as_batch(library_rows(data.library, offsets), data.chats[chosen])
