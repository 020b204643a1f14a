"""Weights on large pages: the same, and left where they are if they would not fit."""

import itertools
from pathlib import Path

import pytest
import torch

from graphs.trees import tensors_of
from runtime import resident as module
from runtime.resident import resident
from tests.graphs.whole import golden_model


def test_a_copy_has_the_same_weights() -> None:
    given = golden_model().weights
    made = resident(given)
    pairs = list(zip(tensors_of(given), tensors_of(made), strict=True))
    assert len(pairs) > 20
    for one, other in pairs:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        assert other.is_contiguous()
        assert other.data_ptr() % 64 == 0
        assert other.data_ptr() != one.data_ptr()
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for _, t in pairs)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_what_would_not_fit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available", lambda: 1000)
    given = golden_model().weights
    assert resident(given) is given


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("limit", "found"), [("1200000", 900_000), ("9999999", 2048_000), ("400000", 100_000)]
)
def test_a_container_may_have_less_than_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, limit: str, found: int
) -> None:
    """What its processes use is not there, what it has read of files is."""
    group(tmp_path, monkeypatch, version, limit)
    assert module.available() == found


def test_a_container_may_have_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(tmp_path, monkeypatch, 2, "max")
    assert module.available() == 2048_000


def test_there_may_be_no_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch)
    assert module.available() == 2048_000


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = folder / "meminfo"
    memory.write_text("MemTotal: 9000 kB\nMemAvailable:    2000 kB\nHugePages_Total:   0\n")
    monkeypatch.setattr(module, "_MEMORY", memory)
    monkeypatch.setattr(module, "_CONTAINER", folder)


def group(folder: Path, monkeypatch: pytest.MonkeyPatch, version: int, limit: str) -> None:
    machine(folder, monkeypatch)
    names, kinds, place = ("max", "current"), "", folder
    if version == 1:
        names, kinds, place = ("limit_in_bytes", "usage_in_bytes"), "total_", folder / "memory"
        place.mkdir()
    stat = f"anon 1\n{kinds}inactive_file 150000\n{kinds}active_file 50000"
    for name, text in zip((*names, "stat"), (limit, "500000", stat), strict=True):
        (place / f"memory.{name}").write_text(f"{text}\n")
