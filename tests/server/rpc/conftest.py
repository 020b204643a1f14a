"""A worker with nothing special about it, for a module's tests; those that need another have it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.rpc.working import Running, running
from tests.server.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Running]:
    with running(folder) as made:
        yield made
