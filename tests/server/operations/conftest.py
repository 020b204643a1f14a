"""What tests of operations share: the lines that are logged of requests."""

import logging
from collections.abc import Iterator

import pytest

from tests.server.operations.watched import Lines


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, log = Lines(), logging.getLogger("server.operations.interceptor")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)
