"""Grammars and rules over the tiny tokenizer, and bit sets read back, for tests of constraints."""

import json

import numpy as np

from runtime.exchange import Mask
from runtime.grammar import Grammars
from runtime.request import SamplingParams
from runtime.rules import Rules
from runtime.tokenizer import Tokenizer
from tests.runtime.tiny_tokenizer import VOCAB_SIZE, tiny_core

TOKENIZER = Tokenizer(tiny_core(), vocab_size=VOCAB_SIZE, bos_id=0)
EOS_IDS = (1, 2, 376)  # 376 is an id without a token, as the golden configs have it
EOS, END = 1, TOKENIZER.id_of("</think>")
GRAMMARS = Grammars(TOKENIZER, eos_ids=EOS_IDS)

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "caf\u00e9"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)


def encode(text: str) -> list[int]:
    """Without BOS."""
    return TOKENIZER.encode(TOKENIZER.bos_token + text)[1:]


def members(row: Mask) -> set[int]:
    """The ids in one bit set int32 [U]."""
    return set(np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist())


def ids(mask: Mask | None, row: int) -> set[int]:
    """What a row of a window may draw."""
    return set(range(VOCAB_SIZE)) if mask is None else members(mask[row])


def rules(params: SamplingParams) -> Rules:
    return Rules(params, vocab=VOCAB_SIZE, eos_ids=EOS_IDS, tokenizer=TOKENIZER, grammars=GRAMMARS)
