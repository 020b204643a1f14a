"""The benchmark runs and reports, on a tiny random checkpoint; no number is judged here."""

from pathlib import Path

import pytest

from tests.bench.__main__ import speeds, starts
from tests.bench.report import render
from tests.server.tiny_checkpoint import write_checkpoint


def test_the_benchmark_runs_and_names_every_draft_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.bench.prompts.CODE", ("def f(",))
    monkeypatch.setattr("tests.bench.prompts.CHATS", ("hi",))
    folder = write_checkpoint(tmp_path / "checkpoint")
    measured = speeds(folder, rounds=2, tokens=6)
    text = render(measured, starts(folder, repeats=1), rounds=2, tokens=6)
    for kind in ("code", "chat"):
        assert [speed.draft_tokens for speed in measured[kind]] == [0, 1, 2, 3]
        for count in range(4):
            assert f"| {kind} | {count} | " in text
    assert "the rest over checkpoint + state" in text
