"""The benchmarks' own arithmetic on a tiny model and on made-up numbers; no speed is judged."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from graphs.checkpoint import Checkpoint
from graphs.plan import EnginePlan
from graphs.synthetic import SMALL
from graphs.synthetic_weights import write_synthetic
from graphs.traffic import Reads
from runtime.bench.run import Case, Options, Result
from runtime.engine import Engine
from runtime.request import SamplingParams
from tests.bench import builds, nano, starts, synthetic
from tests.bench.__main__ import SECTIONS
from tests.bench.document import ORDER, publish
from tests.bench.speed import Runner, Speed, measure, run_prompts
from tests.sources import ROOT

PROMPTS = ([5, 9, 77], [90, 3, 3, 18])
GREEDY = SamplingParams(max_tokens=7, ignore_eos=True)


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runner]:
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic(folder, SMALL)
    checkpoint = Checkpoint.open(folder)
    config, weights = checkpoint.config, checkpoint.load()
    plan = EnginePlan(widths=(1, 3), batches=(1,), prefill=(16,))
    return {
        str(count): Runner(
            engine=Engine(config, weights, plan=plan, draft_tokens=count, context=64)
        )
        for count in (0, 2)
    }


def test_every_runner_is_measured_in_every_round(runners: dict[str, Runner]) -> None:
    rounds: list[int] = []
    speeds = measure(runners, PROMPTS, GREEDY, rounds=3, between=lambda: rounds.append(1))
    assert len(rounds) == 3
    assert list(speeds) == ["0", "2"]
    assert speeds["0"].tokens_per_step == 1
    assert 1 <= speeds["2"].tokens_per_step <= 3
    for speed in speeds.values():
        assert len(speed.tokens_per_second) == len(speed.step_ms) == 3
        for tokens, ms in zip(speed.tokens_per_second, speed.step_ms, strict=True):
            assert tokens * ms / 1000 == pytest.approx(speed.tokens_per_step)


def test_the_prefill_and_its_token_are_left_out(runners: dict[str, Runner]) -> None:
    one = run_prompts(runners["0"], PROMPTS, GREEDY)
    assert [len(tokens) for tokens in one.tokens] == [7, 7]
    assert (one.emitted, one.steps) == (12, 12)


def test_runners_that_disagree_are_not_measured(
    runners: dict[str, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = runners["2"].engine
    decode = other.decode

    def wrong(*arguments: object, **keys: object) -> object:
        made = decode(*arguments, **keys)  # pyright: ignore[reportArgumentType]
        return [dataclasses.replace(one, tokens=(1,) * len(one.tokens)) for one in made]

    monkeypatch.setattr(other, "decode", wrong)
    with pytest.raises(RuntimeError, match="different tokens"):
        measure(runners, PROMPTS, GREEDY, rounds=1)


def case(width: int, seconds: float, size: int, length: float) -> Case:
    reads = (Reads(kind="head", count=1, fixed=size, experts=0.0, cache=0),)
    made = Case(width=width, batch=1, length=length, reads=reads, distinct=())
    # Once everything took twice as long.
    made.step_s.extend((seconds, 2 * seconds, seconds))
    made.roof.extend((25e3, 12.5e3, 25e3))
    return made


def test_the_bars_of_the_synthetic_model() -> None:
    result = Result(
        options=Options(),
        cases=(case(1, 0.02, 400, 1.0), case(4, 0.04, 640, 3.0)),
        prefill_s=(1.0,),
        kinds={},
        host_s={},
    )
    found = synthetic.numbers(result)
    assert found["plain_memory_share"] == pytest.approx(400 / 0.02 / 25e3)
    assert found["width_4_time_over_bytes"] == pytest.approx(2.0 / 1.6)
    assert found["gain"] == pytest.approx(1.5)
    assert found["gain_of_allowed"] == pytest.approx(1.6 / 2.0)


def test_nano_is_compared_with_eager_round_by_round() -> None:
    def speed(*values: float) -> Speed:
        return Speed(tokens_per_step=2.0, tokens_per_second=list(values), step_ms=[1.0] * 3)

    by_k = {"0": speed(10, 10, 20), "3": speed(20, 30, 60), "auto": speed(20, 27, 50)}
    speeds = {"code": by_k, "chat": by_k, "noise": by_k}
    eager = {"code": [5.0, 5.0, 10.0], "chat": [2.0, 6.0, 6.0]}
    made = nano.section(speeds, eager, 42.4)
    # code: 4, 6, 6; chat: 10, 5, 10; the lesser of the two medians.
    best = dict.fromkeys(("auto_of_best_code", "auto_of_best_chat", "auto_of_best_noise"), 0.9)
    assert made.numbers == pytest.approx({"over_eager": 6.0, "host_us": 42.4, **best})
    decode = made.tables[0]
    assert decode.rows[1][:4] == ("code", "3", "30.0 (20.0 to 60.0)", "3.00 (2.00 to 3.00)")
    assert [row[1] for row in decode.rows[-2:]] == ["eager", "eager"]


def test_builds_and_starts_become_sections(tmp_path: Path) -> None:
    found = {
        "nano": {"seconds": 100.0, "programs": 80, "bytes": 5e7},
        "release": {"seconds": 250.0, "programs": 80, "bytes": 6e7},
    }
    process = {"first_token_s": 1.5, "loaded_token_s": 0.5, "process_s": 2.0, "peak_bytes": 400e6}
    model = {**process, "checkpoint_bytes": 18e6, "state_bytes": 2e6}
    tiny = {**process, "peak_bytes": 350e6, "checkpoint_bytes": 0.5e6, "state_bytes": 0.5e6}
    sections = [
        builds.section(found),
        starts.start_section([model, model, {**model, "loaded_token_s": 9.0}]),
        starts.memory_section([model], [tiny]),
    ]
    text = publish(sections, tmp_path)
    assert "| step5-nano | 100 | 80 | 50 |" in text
    assert (
        "| 92 layers of real width: build time over step5-nano's | at most 3 x | 2.50 x | yes |"
        in text
    )
    assert "| opening checkpoint and artifact to the first token | 0.50 (0.50 to 9.00) |" in text
    # 400 MB less the 349 MB of the libraries, over 20 MB.
    assert "| the rest over checkpoint + state | 2.55 |" in text


def test_every_section_has_a_place_in_the_document() -> None:
    assert set(SECTIONS) < {*ORDER, "peers"}


def test_a_section_that_does_not_exist_is_named() -> None:
    command = [sys.executable, "-m", "tests.bench", "memory-speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "memory-speed: the sections are synthetic, nano, build, start, requests, long"
        in done.stderr
    )
    assert done.stdout == ""
