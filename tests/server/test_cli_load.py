"""`fourstep bench serve`: both loops against a worker, what is told, what is refused."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from server.cli_commands import app
from tests.server.rpc.working import Running, running
from tests.server.tiny_checkpoint import write_checkpoint
from tests.sources import ROOT, environment

RUNNER = CliRunner()
SMALL = ("--prompt", "4-20", "--answer", "3-6")


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(write_checkpoint(tmp_path_factory.mktemp("load") / "tiny")) as found:
        yield found


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("def read_lines(path):\n    return path.read_text().splitlines()\n" * 4)
    return path


def bench(*arguments: str) -> tuple[int, str, str]:
    result = RUNNER.invoke(app, ["bench", "serve", *arguments])
    return result.exit_code, result.stdout, result.stderr


def measured(worker: Running, text: Path, *arguments: str) -> dict[str, Any]:
    address = worker.worker.listeners[0].address
    more = ("--address", address, "--text", str(text), "--json", *SMALL)
    code, out, err = bench(*more, *arguments)
    assert code == 0, err
    return json.loads(out)


def test_a_closed_loop(worker: Running, text: Path) -> None:
    found = measured(worker, text, "--concurrency", "2", "--requests", "6")
    assert (found["requests"], found["statuses"]) == (6, {"OK": 6})
    assert 18 <= found["tokens"] <= 36
    assert 24 <= found["prompt_tokens"] <= 120
    assert found["time_to_first_token_ms"]["count"] == 6
    assert found["between_messages_ms"]["p99"] >= found["between_messages_ms"]["p50"] > 0
    assert 1 <= found["tokens_per_step"] <= 4
    assert found["load"]["prompt"] == "4-20"
    assert found["goodput"] is None
    assert found["stopped_early"] is False


def test_an_open_loop_meets_a_full_queue(worker: Running, text: Path) -> None:
    more = ("--rate", "2000", "--requests", "30", "--goodput", "ttft:100000")
    found = measured(worker, text, *more)
    assert found["requests"] == 30
    refused = found["statuses"]["RESOURCE_EXHAUSTED"]
    assert found["statuses"]["OK"] == 30 - refused
    assert found["goodput"]["good"] == 30 - refused
    assert found["goodput_limits_ms"] == {"ttft": 100000}


def test_an_open_loop_does_not_wait_for_answers(worker: Running, text: Path) -> None:
    """The requests are all due within a moment, and an answer takes longer: what waits for a slot
    shows in the time to the first token, which counts from then."""
    found = measured(worker, text, "--rate", "5000", "--requests", "5", "--answer", "60")
    assert found["statuses"] == {"OK": 5}
    first, total = found["time_to_first_token_ms"], found["total_ms"]
    # Two slots: the fifth request begins after two others are over, one after the other.
    assert first["max"] > total["p50"] / 2
    assert found["sent_late_ms"]["count"] == 5


def test_a_duration_ends_the_arrivals(worker: Running, text: Path) -> None:
    found = measured(worker, text, "--concurrency", "1", "--duration", "0.3")
    assert found["requests"] >= 1
    assert found["seconds"] >= 0.3


def test_a_deadline_is_a_status(worker: Running, text: Path) -> None:
    address = worker.worker.listeners[0].address
    more = ("--concurrency", "1", "--requests", "1", "--timeout", "0.001")
    code, out, err = bench("--address", address, "--text", str(text), *SMALL, *more)
    # Not even the first request, which opens the connection, is answered in time.
    assert (code, out) == (1, "")
    assert "fourstep: error: DEADLINE_EXCEEDED" in err


def test_tables_and_plots(worker: Running, text: Path, tmp_path: Path) -> None:
    address = worker.worker.listeners[0].address
    more = ("--rate", "2000", "--requests", "20", "--goodput", "ttft:100000,total:200000")
    code, out, _ = bench(
        *("--address", address, "--text", str(text), "--plots", str(tmp_path / "plots")),
        *(*SMALL, *more),
    )
    assert code == 0
    for part in ("2000 requests a second arrive", "p95", "first token", "RESOURCE_EXHAUSTED"):
        assert part in out
    assert "good (ttft 100000 ms, total 200000 ms)" in out
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "serve-latency.png",
        "serve-time.png",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give one of --rate"),
        (("--rate", "1", "--prompt", "x"), "--prompt 'x'"),
        (("--rate", "1", "--goodput", "x"), "--goodput 'x'"),
        (("--rate", "1", "--text", "nowhere.txt"), "nowhere.txt"),
        (("--rate", "1", "--key", "x"), "--cert and --key go together"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    code, out, err = bench(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_plots_that_cannot_be_drawn_are_refused_before_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens at the address, which is exit code 1 where it is asked."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    address = ("--address", f"unix:{tmp_path / 'nobody'}", "--rate", "1")
    code, _, err = bench(*address, "--plots", str(tmp_path / "plots"))
    assert code == 2
    assert "pip install -e '.[bench]'" in err
    assert not (tmp_path / "plots").exists()


def test_lengths_have_to_fit_the_worker(worker: Running) -> None:
    address = worker.worker.listeners[0].address
    asked = ("--address", address, "--concurrency", "1", "--requests", "1", "--prompt", "250")
    code, _, err = bench(*asked, "--answer", "7")
    assert code == 2
    assert "250 and 7 tokens do not fit the worker's 256 positions" in err
    code, out, _ = bench(*asked, "--answer", "6", "--json")
    assert code == 0
    assert json.loads(out)["statuses"] == {"OK": 1}


def test_an_interrupt_ends_it_early_and_says_so(
    worker: Running, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, opened = [], worker.served.open

    def counting(*given: Any, **more: Any) -> Any:
        begun.append(1)
        return opened(*given, **more)

    monkeypatch.setattr(worker.served, "open", counting)
    address = worker.worker.listeners[0].address
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from server.cli import main; main()"
    arguments = ("--address", address, "--text", str(text), *SMALL, "--json")
    process = subprocess.Popen(
        [*(sys.executable, "-c", code, "bench", "serve", "--concurrency", "1"), *arguments]
        + ["--duration", "600"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(begun) < 3:  # the first opens the connection, the second has ended
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    found = json.loads(out)
    assert found["stopped_early"] is True
    assert found["requests"] >= 1
    assert err.splitlines()[-1].startswith("fourstep: stopped early")


def test_a_worker_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    code, out, err = bench("--address", f"unix:{tmp_path / 'nobody'}", "--rate", "1")
    assert (code, out) == (1, "")
    assert f"No worker answers at unix:{tmp_path / 'nobody'}: start one" in err
    assert err.startswith("fourstep: error: UNAVAILABLE: ")
