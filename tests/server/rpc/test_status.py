"""What a call ends with, as it goes over the wire."""

from base64 import b64encode
from urllib.parse import quote

import pytest

from server.rpc.status import status_of, trailing

_HEADERS = 8192  # bytes that a client takes by default, if it says nothing else
_ENTRY = 32  # that each counts beside its name and value


@pytest.mark.parametrize("letter", ["x", "%", "\n", "\u00e9", "\u8a9e", "\U0001f600"])
def test_no_text_is_longer_than_a_client_takes(letter: str) -> None:
    """In its header and again in the details."""
    ending = status_of(ValueError(letter * 10_000))
    entries = {
        "content-type": "application/grpc",
        "grpc-status": "3",
        "grpc-message": quote(ending.details),
        **{key: b64encode(value).decode() for key, value in trailing(*ending)},
    }
    size = sum(len(key) + len(value) + _ENTRY for key, value in entries.items())
    assert size + 512 < _HEADERS  # room for those of proxies
