"""Writable copies of the golden checkpoints, for tests that break them."""

from pathlib import Path

import pytest

from tests.graphs import variants


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return variants.copy(tmp_path / "packed", "nvfp4-packed")


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return variants.copy(tmp_path / "single", "nvfp4-per-expert")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return variants.copy(tmp_path / "plain", "bf16")
