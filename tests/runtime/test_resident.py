"""Weights on large pages: the same, and left where they are if they would not fit."""

import itertools
from pathlib import Path

import pytest
import torch

from graphs.pages import empty
from graphs.trees import nbytes_of, tensors_of
from runtime import resident as module
from runtime.build import open_checkpoint
from runtime.resident import resident
from tests.graphs.whole import golden_model
from tests.server.tiny_checkpoint import write_checkpoint


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


@pytest.mark.parametrize("more", [0, 1])
def test_what_would_leave_too_little_stays(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """Half of what is free is the most, and the copy is one tensor on large pages."""
    given, asked = golden_model().weights, list[int]()

    def noted(size: int, *, dtype: torch.dtype) -> torch.Tensor:
        asked.append(size)
        return empty(size, dtype=dtype)

    monkeypatch.setattr(module, "available", lambda: 2 * nbytes_of(given) - more)
    monkeypatch.setattr(module, "empty", noted)
    assert (resident(given) is given) == bool(more)
    assert len(asked) == 1 - more
    assert all(size >= nbytes_of(given) for size in asked)


def test_what_is_opened_is_not_left_in_its_files(tmp_path: Path) -> None:
    _, weights = open_checkpoint(write_checkpoint(tmp_path / "tiny"), drafting=True)
    assert len({one.untyped_storage().data_ptr() for one in tensors_of(weights)}) == 1
