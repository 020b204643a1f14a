"""`fourstep client` on the command line: pipes, exit codes, a terminal."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli_commands import app
from tests.server.rpc.working import Running, running
from tests.server.tiny_checkpoint import write_checkpoint
from tests.sources import ROOT, environment

RUNNER = CliRunner()
PROGRAM = "from server.cli import main; main()"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(write_checkpoint(tmp_path_factory.mktemp("client") / "tiny")) as found:
        yield found


def address(worker: Running) -> str:
    return worker.worker.listeners[0].address


def client(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    result = RUNNER.invoke(app, ["client", *arguments], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_a_text_is_continued(worker: Running) -> None:
    arguments = ("--address", address(worker), "--max-tokens", "5", "--prompt")
    code, out, err = client(*arguments, "def read")
    assert (code, "5 tokens in" in err) == (0, True)
    assert out
    assert client(*arguments, "-", stdin="def read")[:2] == (0, out)


def test_a_question_comes_from_an_option_or_a_pipe(worker: Running) -> None:
    arguments = ("--address", address(worker), "--max-tokens", "5")
    code, out, err = client(*arguments, "--message", "Hello")
    assert (code, "5 tokens in" in err) == (0, True)
    assert client(*arguments, stdin="Hello\n")[:2] == (0, out)
    assert client(*arguments, "--message", "-", stdin="Hello\n")[:2] == (0, out)


def test_a_chat_that_waits_is_answered(worker: Running, tmp_path: Path) -> None:
    chat = tmp_path / "chat.json"
    chat.write_text('[{"role": "user", "content": "Hello"}]')
    arguments = ("--address", address(worker), "--max-tokens", "5")
    code, out, _ = client(*arguments, "--chat", str(chat))
    assert (code, out) == (0, client(*arguments, "--message", "Hello")[1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompt", "x", "--message", "y"), "--prompt is continued as it is"),
        (("--message", ""), "there is no question"),
        ((), "there is no question"),
        (("--chat", "nowhere.json"), "nowhere.json"),
        (("--key", "x", "--message", "y"), "--cert and --key go together"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    code, out, err = client(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_a_failure_is_one_line_with_its_status(worker: Running, tmp_path: Path) -> None:
    code, out, err = client("--address", f"unix:{tmp_path / 'nobody'}", "--message", "x")
    assert (code, out) == (1, "")
    assert err.startswith("fourstep: error: UNAVAILABLE: ")
    assert (
        f"No worker answers at unix:{tmp_path / 'nobody'}: start one with `fourstep serve`" in err
    )
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--message", "x" * 2000),
        *(("--prompt", "def a", "--max-tokens", n) for n in ("0", "99999")),
    ],
)
def test_what_the_worker_finds_wrong_is_the_users_too(
    worker: Running, arguments: tuple[str, ...]
) -> None:
    code, out, err = client("--address", address(worker), *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("fourstep: error: INVALID_ARGUMENT: ")
    assert "No worker answers" not in err
    assert "failed" not in err


def test_a_client_loads_no_model_code(worker: Running) -> None:
    check = "import sys; from server.cli_commands import app\n"
    check += "try: app()\nfinally: assert 'torch' not in sys.modules"
    command = ["client", "--address", address(worker), "--message", "Hello", "--max-tokens", "2"]
    done = subprocess.run(
        [sys.executable, "-c", check, *command],
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_conversation_on_a_terminal(worker: Running) -> None:
    master, slave = pty.openpty()
    command = ["client", "--address", address(worker), "--max-tokens", "4"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command],
        env=environment(TERM="xterm"),
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        seen = read_until(master, "> ")
        assert "tiny at" in seen
        assert "drafted by MTP layer 3" in seen
        for said in ("Hello\n", "again\n"):
            os.write(master, said.encode())
            assert "4 tokens in" in read_until(master, "tokens in.*> ")
        os.write(master, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(terminal: int, pattern: str) -> str:
    """What is written until it has this."""
    seen = ""
    while not re.search(pattern, seen, re.DOTALL):
        seen += os.read(terminal, 4096).decode(errors="replace")
    return seen
