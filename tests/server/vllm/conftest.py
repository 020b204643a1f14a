"""A worker with both protocols, for a module's tests, and a stub of the gateway's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.rpc.working import Running
from tests.server.tiny_checkpoint import write_checkpoint
from tests.server.vllm.calling import Stub, calling


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("vllm") / "tiny")


@pytest.fixture(scope="module")
def both(folder: Path) -> Iterator[tuple[Running, Stub]]:
    with calling(folder) as made:
        yield made


@pytest.fixture
def worker(both: tuple[Running, Stub]) -> Running:
    return both[0]


@pytest.fixture
def stub(both: tuple[Running, Stub]) -> Stub:
    return both[1]


@pytest.fixture
def ids(worker: Running) -> list[int]:
    return worker.served.tokenizer.encode("def read")
