"""Options that are wrong: a file that cannot be read is told by the option that names it."""

from importlib.metadata import version
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


@pytest.mark.parametrize("command", ["generate", "client"])
def test_a_seed_below_zero_is_refused(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--prompt", "x", "--seed", "-1"])
    assert result.exit_code == 2
    assert "--seed" in result.stderr


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"fourstep {version('fourstep')}\n")
