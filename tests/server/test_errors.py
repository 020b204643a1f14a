"""Options that are wrong: a file that cannot be read is told by the option that names it."""

import copy
import pickle
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli_commands import app
from server.errors import ProblemsError

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


WRONG = ("--top-p", "2", "--top-k", "-4", "--min-p", "3", "--bad-word", "", "--choice", "")


def test_all_that_is_wrong_with_a_request_is_told_by_option() -> None:
    more = ("--logprobs", "3", "--logit-bias", "x", "--artifact", "x", "--compiler", "eager")
    result = CliRunner().invoke(app, ["generate", *WRONG, *more])
    lines = result.stderr.splitlines()
    assert result.exit_code == 2
    assert all(line.startswith("fourstep: error: ") for line in lines)
    assert [line.removeprefix("fourstep: error: ").split(": ")[0] for line in lines] == [
        "give one of --prompt TEXT and --chat FILE",
        "--logprobs is for --json",
        "--logit-bias",
        "--choice",
        "--artifact and --artifact-sha256 have no meaning with --compiler eager",
        *("--top-k -4", "--top-p 2.0", "--min-p 3.0", "--bad-word"),
    ]


def test_all_that_is_wrong_with_a_load_is_told() -> None:
    arguments = ("--address", "127.0.0.1", "--prompt", "x", "--answer", "y", "--goodput", "z")
    result = CliRunner().invoke(app, ["bench", "serve", *arguments])
    assert result.exit_code == 2
    for part in ("--address: ", "--prompt 'x'", "--answer 'y'", "give one of --rate", "--goodput"):
        assert f"fourstep: error: {part}" in result.stderr
    assert len(result.stderr.splitlines()) == 5


@pytest.mark.parametrize(
    "command", [("client", "--message", "x"), ("bench", "serve", "--rate", "1")]
)
@pytest.mark.parametrize(
    "address", ["127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1", "http://127.0.0.1:80", "http://a"]
)
def test_an_address_that_nobody_can_have(command: tuple[str, ...], address: str) -> None:
    result = CliRunner().invoke(app, [*command, "--address", address])
    form = "HOST:PORT with a port from 1 to 65535, or unix:PATH"
    assert result.exit_code == 2
    assert result.stderr == f"fourstep: error: --address: {address!r} must be {form}\n"


@pytest.mark.parametrize("option", [("--spec-tokens", "7"), ("--precision", "fp16")])
def test_a_choice_that_there_is_not(option: tuple[str, str]) -> None:
    result = CliRunner().invoke(app, ["generate", "--prompt", "x", *option])
    assert result.exit_code == 2
    assert f"Invalid value for '{option[0]}': '{option[1]}' is not" in result.stderr


@pytest.mark.parametrize("command", ["generate", "serve", "inspect", "verify", "bench"])
def test_a_file_is_no_folder(command: str) -> None:
    result = CliRunner().invoke(app, [command, __file__])
    assert result.exit_code == 2
    assert f"'{__file__}' is a file" in result.stderr


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"fourstep {version('fourstep')}\n")


def test_a_copy_of_problems_says_the_same() -> None:
    error = ProblemsError(["one", "two"])
    for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(same), same.problems) == ("one; two", ("one", "two"))
