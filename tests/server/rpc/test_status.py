"""What a call ends with, as it goes over the wire."""

from base64 import b64encode
from urllib.parse import quote

import pytest

from runtime.answer import End, EndReason
from runtime.numbers import Numbers
from server.rpc.status import Ending, status_of, status_of_end, trailing

_HEADERS = 8192  # bytes that a client takes by default, if it says nothing else
_ENTRY = 32  # that each counts beside its name and value


@pytest.mark.parametrize("of", ["error", "failed", "invalid"])
@pytest.mark.parametrize("letter", ["x", "%", "\n", "\u00e9", "\u8a9e", "\U0001f600"])
def test_no_text_is_longer_than_a_client_takes(letter: str, of: str) -> None:
    """In its header and again in the details."""
    ending = ending_of(letter * 10_000, of)
    entries = {
        "content-type": "application/grpc",
        "grpc-status": "3",
        "grpc-message": quote(ending.details),
        **{key: b64encode(value).decode() for key, value in trailing(*ending)},
    }
    size = sum(len(key) + len(value) + _ENTRY for key, value in entries.items())
    assert size + 512 < _HEADERS  # room for those of proxies


@pytest.mark.parametrize("of", ["error", "failed", "invalid"])
def test_a_long_text_keeps_both_its_ends(of: str) -> None:
    details = ending_of(f"field: {'x' * 10_000}: must be small", of).details
    assert details.startswith("field: x")
    assert details.endswith("x: must be small")
    assert ending_of("a short one", of).details == "a short one"


def ending_of(text: str, of: str) -> Ending:
    """Of an error that says it, or of an answer that ended so."""
    if of == "error":
        return status_of(ValueError(text))
    reason: EndReason = "failed" if of == "failed" else "invalid"
    found = status_of_end(End(reason=reason, numbers=Numbers(prompt_tokens=1), message=text))
    assert found is not None
    return found
