"""The console command as a process: pipes that close, interrupts, locales, help without torch."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.tiny_checkpoint import write_checkpoint
from tests.sources import ROOT

# A test run in the background of a shell ignores SIGINT, and its children would with it. They say
# so themselves: between fork and exec gRPC would run its own handlers, which may write to stderr.
HEARS_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{HEARS_INTERRUPTS}; from server.cli import main; main()"]
EAGER = ("generate", "--compiler", "eager")  # no test here is about engines


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("process") / "checkpoint")


def start(*arguments: object, **options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *(str(argument) for argument in arguments)],
        cwd=ROOT,
        env={"OMP_NUM_THREADS": "1", "COLUMNS": "200", **options},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("form", ["--json", "--spec-tokens=3"])
def test_a_reader_that_goes_away_ends_it_quietly(checkpoint: Path, form: str) -> None:
    process = start(*EAGER, checkpoint, "--prompt", "x", "--max-tokens", 20000, form)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1


@pytest.mark.parametrize("form", ["--json", "--spec-tokens=3"])
def test_an_interrupt_ends_it_with_whole_output(checkpoint: Path, form: str) -> None:
    process = start(*EAGER, checkpoint, "--prompt", "x", "--max-tokens", 20000, form)
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert err == b""
    out.decode()


def test_output_is_utf8_in_any_locale(checkpoint: Path) -> None:
    process = start(
        *(*EAGER, checkpoint, "--prompt", "\u4f60\U0001f600", "--max-tokens", 5),
        PYTHONIOENCODING="ascii",
        LC_ALL="C",
    )
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out.decode().startswith("\u4f60\U0001f600")


def test_a_pipe_gets_each_step_as_it_comes(checkpoint: Path) -> None:
    process = start(*EAGER, checkpoint, "--prompt", "x", "--max-tokens", 20000, "--json")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert process.poll() is None
    process.kill()
    process.communicate()
    assert len(first["token_ids"]) == 1


def test_errors_leave_no_traceback(tmp_path: Path) -> None:
    process = start(*EAGER, tmp_path / "nothing", "--prompt", "x")
    out, err = process.communicate()
    assert process.returncode == 2
    assert out == b""
    assert err.decode().splitlines() == [
        f"fourstep: error: {tmp_path / 'nothing' / 'config.json'}: no such file"
    ]


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from server.cli_commands import app\n"
        "app(['generate', '--help'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"--spec-tokens" in done.stdout


def failing(*arguments: object) -> tuple[int, str]:
    process = start(*arguments)
    _, err = process.communicate()
    return process.returncode, err.decode()


FULL = Path("/dev/full")
HAS_FULL = pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
SHORT = ("--prompt", "x", "--max-tokens", "2")


def written_to(*arguments: str, **files: Any) -> tuple[int, bytes | None]:
    """The exit code, and what came on stderr where that is a pipe."""
    done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, check=False, **files)
    return done.returncode, done.stderr


@HAS_FULL
@pytest.mark.parametrize("form", ["text", "json", "inspect", "inspect-json", "help"])
def test_a_full_disk_is_one_line(checkpoint: Path, form: str) -> None:
    arguments = {
        "text": (*EAGER, str(checkpoint), *SHORT),
        "json": (*EAGER, str(checkpoint), *SHORT, "--json"),
        "inspect": ("inspect", str(checkpoint)),
        "inspect-json": ("inspect", str(checkpoint), "--json"),
        "help": ("--help",),
    }[form]
    with FULL.open("wb") as full:
        code, err = written_to(*arguments, stdout=full, stderr=subprocess.PIPE)
    said = b"fourstep: error: standard output: No space left on device\n"
    assert (code, err) == (2, said)


@HAS_FULL
def test_where_nothing_can_be_said_the_code_says_it() -> None:
    with FULL.open("wb") as full:
        assert written_to("inspect", "nowhere", stdout=full, stderr=full) == (2, None)


def closed(streams: str, *arguments: str) -> tuple[int, bytes, bytes]:
    """What becomes of a command that starts without some of its streams."""
    command = f"exec {shlex.join([*COMMAND, *arguments])} {streams}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_closed_output_is_nowhere(checkpoint: Path) -> None:
    assert closed(">&-", *EAGER, str(checkpoint), *SHORT, "--json") == (0, b"", b"")


def test_a_file_does_not_become_a_stream_that_was_closed(tmp_path: Path) -> None:
    """The next file would get its number, and what is printed would go there."""
    path = tmp_path / "file"
    code = (
        "import os; from server.cli_streams import name_streams; name_streams();"
        f"f = open({str(path)!r}, 'wb'); assert f.fileno() > 2; print('lost', flush=True);"
        "os.write(2, b'lost'); os.read(0, 1)"
    )
    command = f"exec {shlex.join([sys.executable, '-c', code])} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], cwd=ROOT, check=False).returncode == 0
    assert path.read_bytes() == b""


def test_a_closed_input_is_empty(checkpoint: Path) -> None:
    code, _, err = closed("<&-", *EAGER, str(checkpoint), "--chat", "-")
    assert code == 2
    assert err.startswith(b"fourstep: error: the chat: is not JSON: ")
    assert err.count(b"\n") == 1


def test_a_client_whose_input_is_closed_has_no_question() -> None:
    said = b"fourstep: error: there is no question: --message or stdin is empty\n"
    assert closed("<&-", "client", "--address", "127.0.0.1:1") == (2, b"", said)


def test_an_output_that_does_not_wait_is_told_when_it_is_full(checkpoint: Path) -> None:
    """Nothing of the text is lost without a word."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    with os.fdopen(reader, "rb"), os.fdopen(writer, "wb") as output:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        code, err = written_to(
            *(*EAGER, str(checkpoint), *SHORT), stdout=output, stderr=subprocess.PIPE
        )
    said = b"fourstep: error: standard output: Resource temporarily unavailable\n"
    assert (code, err) == (2, said)


def test_an_input_that_does_not_wait_is_read_to_its_end(checkpoint: Path) -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    process = subprocess.Popen(
        [*COMMAND, *EAGER, str(checkpoint), "--prompt", "-", "--max-tokens", "2"],
        cwd=ROOT,
        stdin=reader,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(reader)
    with os.fdopen(writer, "wb", buffering=0) as text:
        for piece in (b"early, ", b"late, ", b"the end"):
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(4)  # it has long begun to read
            text.write(piece)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out.startswith(b"early, late, the end")


@contextlib.contextmanager
def unread() -> Iterator[int]:
    """A pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@HAS_FULL
@pytest.mark.parametrize(
    "arguments",
    [("inspect", "nowhere"), ("generate", "--nonsense"), ("nonsense",), ("--help",)],
    ids=" ".join,
)
def test_the_code_is_the_same_where_nobody_reads_of_errors(arguments: tuple[str, ...]) -> None:
    with FULL.open("wb") as full, unread() as nowhere:
        assert written_to(*arguments, stdout=full, stderr=nowhere) == (2, None)


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_an_interrupt_among_the_imports_is_no_traceback(checkpoint: Path, module: str) -> None:
    """It comes when the module is looked for: the first that the command needs, and one whose own
    code in C++ would end everything on an exception."""
    code = f"""
import os, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""
    command = [sys.executable, "-c", f"{HEARS_INTERRUPTS}{code}from server.cli import main; main()"]
    done = subprocess.run(
        [*command, *EAGER, str(checkpoint), *SHORT], cwd=ROOT, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_a_path_that_is_no_text_is_reported(tmp_path: Path) -> None:
    code, err = failing("inspect", f"{tmp_path}/\udcff")
    assert code == 2
    assert err.startswith("fourstep: error: ")
    assert err.count("\n") == 1


def test_a_checkpoint_cannot_drive_the_terminal(checkpoint: Path, tmp_path: Path) -> None:
    """A key of config.json with an escape sequence in it, in a warning and in an error."""
    folder = tmp_path / "evil"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    (folder / "config.json").unlink()
    config = json.loads((checkpoint / "config.json").read_text())
    for place in ({"evil\x1b[2J": 1}, {"hidden_size": "\x1b[2J"}):
        config["text_config"] |= place
        (folder / "config.json").write_text(json.dumps(config))
        _, err = failing(*EAGER, folder, "--prompt", "x", "--max-tokens", 1)
        assert err.startswith("fourstep: ")
        assert "\x1b" not in err


@pytest.mark.parametrize("top_k", [2**63, 10**30])
def test_numbers_beyond_64_bits_are_refused(checkpoint: Path, top_k: int) -> None:
    code, err = failing(*EAGER, checkpoint, "--prompt", "x", "--top-k", top_k)
    assert code == 2
    assert err.startswith(f"fourstep: error: --top-k {top_k}: ")
