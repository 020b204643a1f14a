"""A byte-level BPE tokenizer with the family's special tokens, trained in a moment.

For tests that need a tokenizer and not the shipped one. The ids of the special tokens are fixed;
the merges come from a few lines of text; VOCAB_SIZE leaves ids that no token has, as padded models
do. One added token is written with characters of the byte alphabet, the case decoders differ in.
"""

from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

BOS = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
PAD = "<\uff5c\u2581pad\u2581\uff5c>"
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
SPECIAL = [BOS, EOS, PAD, IM_START, IM_END]
PLAIN_MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<\u00e9>"]
VOCAB_SIZE = 384

LINES = [
    "def read(path):\n    return path.read_text()\n",
    "the quick brown fox jumps over the lazy dog, again and again",
    "caf\u00e9 na\u00efve caf\u00e9",
    "\u4f60\u597d \u4f60\u597d",
]


@cache
def _trained() -> str:
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 32,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(LINES, trainer)
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN_MARKERS])
    return core.to_str()


def tiny_core() -> tokenizers.Tokenizer:
    """A fresh copy, so that a test may change its settings."""
    return tokenizers.Tokenizer.from_str(_trained())
