"""One worker process for all of these tests, and what it says to the same request every time."""

from collections.abc import Iterator

import pytest

from tests.server.abuse.process import POOL, WorkerProcess, tiny_file, worker_process
from tests.server.rpc.working import text_request
from tests.server.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("abuse") / "tiny")
    with worker_process(tiny_file(checkpoint)) as made:
        yield made


@pytest.fixture(scope="session")
def tokens(process: WorkerProcess) -> list[int]:
    """The answer to `text_request()`."""
    return answer(process)


@pytest.fixture
def unharmed(process: WorkerProcess, tokens: list[int]) -> Iterator[None]:
    """After the test the worker is at rest, with the descriptors it had, and answers the same."""
    before = process.at_rest()
    yield
    after = process.at_rest()
    assert after.descriptors <= before.descriptors + 1
    assert after.threads <= before.threads + POOL
    assert answer(process) == tokens


def answer(process: WorkerProcess) -> list[int]:
    messages = process.inference.Generate(text_request(), timeout=60)
    return [token for message in messages for token in message.token_ids]
