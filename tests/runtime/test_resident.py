"""Weights on large pages: the same, and left where they are if they would not fit."""

import itertools

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
