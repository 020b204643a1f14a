"""A checkpoint's card, its archive, and what a listener's traffic counts."""

import json
from pathlib import Path

import pytest

from server.vllm.files import Card, archive
from server.vllm.traffic import WINDOW, Traffic


def folder_of(path: Path, **generation: object) -> Path:
    path.mkdir()
    config = {"model_type": "step5", "architectures": ["Step5ForCausalLM"]}
    (path / "config.json").write_text(json.dumps(config))
    if generation:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def test_defaults_are_those_that_the_checkpoint_names(tmp_path: Path) -> None:
    silent = Card.open(folder_of(tmp_path / "silent"))
    assert (silent.defaults, silent.temperature) == ({}, 1.0)
    told = Card.open(folder_of(tmp_path / "told", temperature=0.6, top_k=40, pad_token_id=3))
    assert (told.defaults, told.temperature) == ({"temperature": 0.6, "top_k": 40}, 0.6)
    assert told.pad_id == 3


def test_a_default_that_nobody_could_ask_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"generation_config\.json: top_p = 1\.5"):
        Card.open(folder_of(tmp_path / "wrong", top_p=1.5))


def test_an_archive_has_the_same_bytes_everywhere(tmp_path: Path) -> None:
    first, second = folder_of(tmp_path / "first"), folder_of(tmp_path / "second")
    assert archive(first) == archive(second)
    (second / "tokenizer.json").write_text("{}")
    archive.cache_clear()
    assert archive(first) != archive(second)


def test_traffic_forgets_what_is_long_past() -> None:
    now = [0.0]
    traffic = Traffic(clock=lambda: now[0])
    traffic.came("a", 30)
    traffic.came("b", 50)
    assert traffic.waiting_tokens == 80
    traffic.began("a", 30, 20)
    traffic.gave(4)
    assert (traffic.waiting_tokens, traffic.cached_share) == (50, 20 / 30)
    assert traffic.tokens_per_second == 4 / WINDOW
    traffic.over("b")
    assert traffic.waiting_tokens == 0
    now[0] = WINDOW + 1
    assert (traffic.tokens_per_second, traffic.cached_share) == (0, 0)
