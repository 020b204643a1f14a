"""What every program is asked to do, so that their numbers can stand side by side.

One stream: a prompt of PREFIX random tokens, then GENERATE tokens one step after the other. Keeps
true: the prompt depends on the vocabulary alone, and no program sees a stop token.
"""

import random

PREFIX = 256
GENERATE = 64
THREADS = 2
ACCEPTANCE = 3.0
DRAFTS = 3
FIRST_ORDINARY = 300  # ids before it are control and byte tokens of the written vocabulary


def prompt(vocab: int) -> list[int]:
    """PREFIX token ids."""
    draw = random.Random(5)
    return [draw.randrange(min(FIRST_ORDINARY, vocab // 2), vocab) for _ in range(PREFIX)]
