"""Log lines: what is in them, that they are lines, and that nobody waits for who reads them."""

import io
import json
import logging
import os
import threading
from typing import Any, Literal, TextIO

import pytest

from server.operations import logs
from server.operations.logs import logging_to

log = logging.getLogger("server.something")


def nothing() -> None:
    """Nobody counts what is lost."""


def written(form: Literal["text", "json"], event: str, **fields: Any) -> str:
    stream = io.StringIO()
    with logging_to(stream, form, lost=nothing):
        log.info(event, extra=fields)
    text = stream.getvalue()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return text[:-1]


def test_a_json_line_has_its_fields() -> None:
    line = json.loads(written("json", "request", tenant="acme", tokens=3, seconds=0.25, none=None))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "INFO",
        "logger": "server.something",
        "event": "request",
        "tenant": "acme",
        "tokens": 3,
        "seconds": 0.25,
        "none": None,
    }


def test_a_text_line_has_those_that_say_something() -> None:
    line = written(
        "text", "request", tenant="", tokens=3, seconds=0.25123456, none=None, path="a b"
    )
    assert line.partition(" ")[2] == 'request tokens=3 seconds=0.2512 path="a b"'


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_stays_a_line(form: Literal["text", "json"]) -> None:
    line = written(form, "request", request_id='x\n{"event": "forged"}\x1b[2J\u2028')
    assert line.isprintable()
    assert line.isascii()
    if form == "json":
        assert json.loads(line)["event"] == "request"
    assert written(form, "two\nlines").isprintable()


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_tells_where_and_not_what(form: Literal["text", "json"]) -> None:
    stream = io.StringIO()
    with logging_to(stream, form, lost=nothing):
        try:
            json.loads("the prompt")
        except ValueError:
            log.exception("failed")
    text = stream.getvalue()
    assert "JSONDecodeError" in text
    assert "decoder.py:" in text
    assert "prompt" not in text
    assert "Expecting" not in text


def test_others_tell_only_what_is_wrong() -> None:
    stream = io.StringIO()
    with logging_to(stream, "text", lost=nothing):
        logging.getLogger("somebody.else").info("chatter")
        logging.getLogger("somebody.else").warning("trouble")
        logging.getLogger("runtime.engine").info("ours")
    log.info("nobody writes any more")
    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == [
        "warning trouble",
        "ours",
    ]


def test_a_reader_that_stops_reading_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "WAITING", 50)
    monkeypatch.setattr(logs, "PATIENCE_S", 0.1)
    lost: list[int] = []
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        talking = threading.Thread(target=talk, args=(stream, lost), daemon=True)
        talking.start()
        talking.join(60)
        waited = talking.is_alive()
        writing = [thread for thread in threading.enumerate() if thread.name == "log"]
        draining = threading.Thread(target=drain, args=(reader,))
        draining.start()
    draining.join()
    for thread in writing:  # until then it may write to the stream, which is closed
        thread.join(60)
        assert not thread.is_alive()
    assert capsys.readouterr().err == ""
    assert not waited
    assert 4000 < len(lost) < 5000


def talk(stream: TextIO, lost: list[int]) -> None:
    """More than a pipe holds."""
    with logging_to(stream, "json", lost=lambda: lost.append(1)):
        for _ in range(5000):
            log.info("request", extra={"padding": "x" * 200})


def drain(reader: int) -> None:
    with os.fdopen(reader, "rb") as stream:
        while stream.read(65536):
            pass
