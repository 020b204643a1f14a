"""What tests of workers share, whichever `worker` theirs is."""

import threading
from collections.abc import Iterator

import pytest

from server.rpc import served
from server.rpc.served import Asked
from tests.server.rpc.working import Running


@pytest.fixture
def gate(worker: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Prompts are read once it is set, as large ones are: beside the event loop."""
    made, read = threading.Event(), worker.served.text

    def slow(text: str) -> Asked:
        assert made.wait(60)
        return read(text)

    monkeypatch.setattr(worker.served, "text", slow)
    monkeypatch.setattr(served, "SMALL", -1)
    yield made
    made.set()
