"""An engine whose drafts are what a known answer says next, with a wrong one now and then.

A random model's own drafts are hardly ever right. With these, windows are accepted whole or in part
at places that a test chooses, and nothing else about the engine changes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from runtime.engine import Engine
from runtime.exchange import Committed, Turn


def foretell(
    monkeypatch: pytest.MonkeyPatch,
    engine: Engine,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    wrong: int = 0,
) -> None:
    """Drafts from `answer`, every `wrong`-th token of it replaced; 0: none."""
    told = [
        (token + 1) % engine.config.vocab_size if wrong and index % wrong == wrong - 1 else token
        for index, token in enumerate(answer)
    ]
    prefill, decode = engine.prefill, engine.decode

    def with_drafts(committed: Committed, known: int) -> Committed:
        drafts = tuple((told[known:] + [0] * 3)[: engine.draft_tokens])
        return dataclasses.replace(committed, drafts=drafts)

    def foretold_decode(turns: Sequence[Turn], **options: Any) -> list[Committed]:
        return [
            with_drafts(committed, turn.position - len(prompt) + 1 + len(committed.tokens))
            for turn, committed in zip(turns, decode(turns, **options), strict=True)
        ]

    monkeypatch.setattr(engine, "prefill", lambda *args: with_drafts(prefill(*args), 1))
    monkeypatch.setattr(engine, "decode", foretold_decode)
