"""The console command as a process: pipes that close, interrupts, locales, help without torch."""

import json
import signal
import subprocess
import sys
from pathlib import Path

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
        "from server.cli import app\n"
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_one_line(checkpoint: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *EAGER, str(checkpoint), "--prompt", "x", "--max-tokens", "2"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.decode().startswith("fourstep: error: [Errno 28]")
    assert done.stderr.count(b"\n") == 1


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
    assert "top_k" in err
