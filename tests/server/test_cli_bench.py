"""`fourstep bench` on the command line: dims, JSON, tables and what is refused."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphs.synthetic import SMALL
from server import cli_bench
from server.cli_bench import parse_dims
from server.cli_commands import app

RUNNER = CliRunner()
DIMS = [part for name, value in vars(SMALL).items() for part in ("--dim", f"{name}={value}")]
QUICK = ["--rounds", "1", "--steps", "2", "--prefix", "8", "--batch", "1", "--width", "2"]
QUICK += ["--compiler", "eager", "--threads", "1"]


def bench(*arguments: str) -> tuple[int, str, str]:
    result = RUNNER.invoke(app, ["bench", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_help_says_that_model_can_be_left_out() -> None:
    code, out, _ = bench("--help")
    assert code == 0
    assert "bench [OPTIONS] [model] [CHECKPOINT] [OPTIONS] | serve [OPTIONS]" in out


def test_a_synthetic_model_as_json() -> None:
    code, out, err = bench("--synthetic", *DIMS, *QUICK, "--acceptance", "1.5", "--json")
    assert (code, err) == (0, "")  # nothing is built, or timed for an artifact
    value = json.loads(out)
    [case] = value["cases"]
    assert (case["width"], case["batch"], case["tokens_per_step"]) == (2, 1, 1.5)
    assert case["bytes"] > 0


def test_tables_and_plots(tmp_path: Path) -> None:
    code, out, _ = bench("--synthetic", *DIMS, *QUICK, "--plots", str(tmp_path))
    assert code == 0
    for title in ("Decode; memory is read at", "Prefill", "Blocks of a step, width 2", "Host"):
        assert title in out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "synthetic-kinds.png",
        "synthetic-steps.png",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dim", "layers=12"], "add --synthetic"),
        (["--synthetic", "--dim", "depth=12"], "the names are hidden, layers"),
        (["--synthetic", "--dim", "layers"], "must be layers=NUMBER"),
        (["--synthetic", "--dim", "layers=-1"], "must be layers=NUMBER"),
        (["--synthetic", "--dim", "layers=2"], "layers = 2"),
        (["--acceptance", "0.5"], "acceptance = 0.5"),
        (["/nowhere"], "/nowhere"),
        (["--synthetic", *DIMS, "--dim", "mtp_layers=2"], "width = 4"),
        (["--prefix", "1048570"], "the model has 1048576"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line(arguments: list[str], said: str) -> None:
    code, out, err = bench(*arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_plots_that_cannot_be_drawn_are_refused_before_the_model_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = bench(str(tmp_path / "nowhere"), "--plots", str(tmp_path / "plots"))
    assert (code, out) == (2, "")
    assert "pip install -e '.[bench]'" in err


def test_a_disk_without_room_for_the_model_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(cli_bench, "write_synthetic", full)
    code, out, err = bench("--synthetic", *DIMS, *QUICK)
    assert (code, out) == (2, "")
    assert err.startswith("fourstep: error: no space left in ")
    assert len(err.strip().splitlines()) == 1


def test_dims_may_be_written_as_options_are() -> None:
    assert parse_dims(["top-regions=9", "layers = 30"]).top_regions == 9
    assert parse_dims(["layers = 30"]).layers == 30
