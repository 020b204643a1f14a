"""A file that an option names and that cannot be read is told by the option, in words."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app

CONNECTING = ("client", "--message", "x")
OPTIONS = [
    (("serve",), "--config"),
    (CONNECTING, "--ca"),
    (CONNECTING, "--token-file"),
    (CONNECTING, "--chat"),
    (("bench", "serve", "--rate", "1"), "--text"),
    (("generate", "--prompt", "x"), "--json-schema"),
    (("generate", "--prompt", "x"), "--grammar"),
    (("generate", "--compiler", "eager"), "--chat"),
]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
@pytest.mark.parametrize(
    ("name", "what"), [("nope", "No such file or directory"), ("", "Is a directory")]
)
def test_a_file_that_cannot_be_read(
    tmp_path: Path, command: tuple[str, ...], option: str, name: str, what: str
) -> None:
    path = str(tmp_path / name)
    result = CliRunner().invoke(app, [*command, option, path])
    assert result.exit_code == 2
    assert result.stderr == f"fourstep: error: {option}: {path}: {what}\n"
