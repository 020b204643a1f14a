"""The measurement on a tiny model: what is forced, counted and compared; no time is judged."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphs.checkpoint import Checkpoint
from graphs.plan import EnginePlan
from graphs.synthetic import SMALL, synthetic_config
from graphs.synthetic_weights import write_synthetic
from graphs.traffic import EMBED, HEAD, MTP, Load, decode_reads
from runtime.bench import forced
from runtime.bench.experts import ExpertCounter
from runtime.bench.host import host_seconds, nothing
from runtime.bench.kinds import StepProfile
from runtime.bench.plots import write_plots
from runtime.bench.roof import ReadSpeed
from runtime.bench.run import Case, Options, Result, Subject, check, measure, tokens_needed
from runtime.bench.tables import memory_share, ratios, tables, to_json, tokens_per_second
from runtime.engine import Engine
from runtime.exchange import Committed, Turn
from runtime.programs import Programs

PROMPTS = ([5, 9, 2, 77, 30, 8, 41, 6], [90, 3, 3, 18, 64, 7, 25, 111])
OPTIONS = Options(widths=(1, 3), batches=(1, 2), acceptance=2.5, prefix=16, steps=4, rounds=2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic(folder, SMALL)
    return Checkpoint.open(folder)


def engine_of(checkpoint: Checkpoint, width: int, slots: int = 1) -> Engine:
    plan = EnginePlan(widths=(width,), batches=(slots,), prefill=(16,))
    options = {"plan": plan, "draft_tokens": width - 1, "context": 128, "slots": slots}
    return Engine(checkpoint.config, checkpoint.load(), **options)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def tracks(checkpoint: Checkpoint) -> list[forced.Track]:
    engine = engine_of(checkpoint, 1)
    return [forced.record(engine, prompt, 40) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def result(checkpoint: Checkpoint) -> Result:
    subject = Subject(
        config=checkpoint.config,
        weights=checkpoint.load(),
        programs=Programs(),
        plan=EnginePlan(prefill=(16,)),
    )
    return measure(subject, OPTIONS, lambda _: None)


def test_the_models_last_position_can_be_measured(checkpoint: Checkpoint) -> None:
    room = checkpoint.config.max_positions - tokens_needed(OPTIONS)
    weights = checkpoint.load()
    check(checkpoint.config, weights, replace(OPTIONS, prefix=room))
    with pytest.raises(ValueError, match="positions are needed, the model has"):
        check(checkpoint.config, weights, replace(OPTIONS, prefix=room + 1))


@pytest.mark.parametrize(
    ("length", "width"),
    [(1, 1), (1, 4), (4, 4), (3, 4), (2.5, 3), (1.1, 2), (3.9, 4), (2 / 3 + 1, 2)],
)
def test_accepted_counts_have_the_mean_that_was_asked(length: float, width: int) -> None:
    counts = list(itertools.islice(forced.accepted_counts(length, width), 300))
    assert 1 + sum(counts) / 300 == pytest.approx(length, abs=1 / 300)
    assert min(counts) >= 0
    assert max(counts) <= width - 1
    assert max(counts) - min(counts) <= 1, "spread evenly"
    assert forced.tokens_needed(length, width, 300) == 301 + sum(counts) + width


@pytest.mark.parametrize(("length", "width"), [(0.5, 4), (4.5, 4), (2, 1)])
def test_an_acceptance_that_no_step_can_have_is_refused(length: float, width: int) -> None:
    with pytest.raises(ValueError, match=f"acceptance = {length}"):
        forced.accepted_counts(length, width)


def test_forced_steps_run_every_row_and_commit_the_plain_tokens(
    checkpoint: Checkpoint, tracks: list[forced.Track], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(checkpoint, 4, slots=2)
    asked: list[list[Turn]] = []
    made: list[list[Committed]] = []
    decode = engine.decode

    def recorded(turns: list[Turn], *, draft: bool) -> list[Committed]:
        assert draft, "the chain has to run"
        asked.append(turns)
        made.append(decode(turns, draft=draft))
        return made[-1]

    monkeypatch.setattr(engine, "decode", recorded)
    forced.prefill(engine, tracks)
    seconds = forced.run(engine, tracks, width=4, length=2.5, steps=8)
    assert len(seconds) == 8
    assert [[len(turn.drafts) for turn in turns] for turns in asked] == [[3, 3]] * 8
    assert [[c.accepted for c in step] for step in made] == [[1, 1], [2, 2]] * 4
    for slot, track in enumerate(tracks):
        tokens = [token for step in made for token in step[slot].tokens]
        assert tuple(tokens) == track.tokens[1 : 1 + len(tokens)]


def test_a_token_that_plain_decoding_did_not_give_ends_the_run(
    checkpoint: Checkpoint, tracks: list[forced.Track]
) -> None:
    engine = engine_of(checkpoint, 2)
    tokens = list(tracks[0].tokens)
    tokens[3] = (tokens[3] + 1) % SMALL.vocab
    wrong = [forced.Track(prompt=tracks[0].prompt, tokens=tuple(tokens))]
    forced.prefill(engine, wrong)
    with pytest.raises(forced.ForcedError, match="plain decoding gave"):
        forced.run(engine, wrong, width=2, length=2, steps=4)


def test_the_counter_counts_distinct_experts_of_real_rows() -> None:
    ids = torch.tensor([[0, 1], [1, 2], [-1, -1]])
    from graphs.ops import routed_experts  # noqa: F401  registers the operator

    operator = torch.ops.fourstep.routed_experts.default
    with ExpertCounter() as counter, torch.device("meta"):
        for chosen in (ids, ids[:1], ids[:2], ids[1:2]):
            h = torch.empty(len(chosen), 4, device="meta")
            operator(h, chosen, chosen.float(), [], "", 0.0)
    assert counter.distinct == [3, 2, 3, 2]
    assert counter.means(2) == [3.0, 2.0]


def test_a_profile_has_every_kind_that_reads_anything(
    checkpoint: Checkpoint, tracks: list[forced.Track]
) -> None:
    engine = engine_of(checkpoint, 3)
    forced.prefill(engine, tracks[:1])
    profile = StepProfile(engine, Programs(), width=3, depths=2, entries=1)
    turns = forced.forced_turns(tracks[:1], 0, 2, 3, SMALL.vocab)
    times = {kind.kind: kind for kind in profile.run(turns, 2)}
    load = Load(width=3, positions=(8,), depths=2)
    reads = {part.kind: part for part in decode_reads(checkpoint.config, engine.weights, load)}
    assert list(times) == list(reads)
    for name, part in reads.items():
        # The block that places the chain's rows is counted to the MTP layers.
        assert times[name].count == part.count + (name == MTP)
        assert len(times[name].seconds) == 2
    assert {EMBED, HEAD, MTP, "sliding + moe"} <= set(times)


def test_the_host_is_measured_without_running_a_block(checkpoint: Checkpoint) -> None:
    plan = EnginePlan(widths=(3,), batches=(1,), prefill=(16,))
    engine = Engine(
        checkpoint.config, checkpoint.load(), programs=nothing(), plan=plan, draft_tokens=2
    )
    with ExpertCounter() as counter:
        assert len(host_seconds(engine, 5)) == 5
    assert counter.distinct == []


def test_every_byte_of_the_buffer_is_read_and_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with ReadSpeed(3, nbytes=4 * 1000) as memory:
        assert memory.nbytes == 4000
        assert memory.sample() > 0
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
    with pytest.raises(ValueError, match="threads = 0"):
        ReadSpeed(0)


def test_everything_is_measured_in_every_round(result: Result) -> None:
    assert [(c.batch, c.width, c.length) for c in result.cases] == [
        *((1, 1, 1), (1, 3, 2.5), (2, 1, 1), (2, 3, 2.5))
    ]
    assert {len(case.step_s) for case in result.cases} == {2}
    assert len(result.prefill_s) == 2 * (1 + 1 + 2 + 2)
    assert {len(case.roof) for case in result.cases} == {2}
    assert list(result.kinds) == list(result.host_s) == [1, 3]
    for case in result.cases:
        rows = case.width * case.batch
        moe = sum(layer.feed_forward == "moe" for layer in synthetic_config(SMALL).layers)
        assert len(case.distinct) == moe
        assert SMALL.chosen <= min(case.distinct)
        assert max(case.distinct) <= min(SMALL.experts, SMALL.chosen * rows)


def test_what_is_shown_follows_from_what_was_measured(result: Result) -> None:
    first, second = (case.reads for case in result.cases[:2])
    fast = Case(width=1, batch=2, length=1, reads=first, distinct=(), step_s=[0.5], roof=[2e6])
    slow = Case(width=4, batch=2, length=3, reads=second, distinct=(), step_s=[2.0], roof=[1e6])
    lone = Case(width=1, batch=1, length=1, reads=second, distinct=(), step_s=[9.0], roof=[3e6])
    some = Result(
        options=OPTIONS,
        cases=(lone, fast, slow),
        prefill_s=(1.0,),
        kinds={},
        host_s={1: 5e-5},
    )
    size, more = (sum(part.total for part in case.reads) for case in (fast, slow))
    assert tokens_per_second(fast) == 4
    assert tokens_per_second(slow) == 3
    assert memory_share(fast) == pytest.approx(size / 0.5 / 2e6)
    assert ratios(some, slow) == (4.0, more / size)
    decode = tables(some)[0]
    assert [row[7:] for row in decode.rows][2][1:] == ("4.00", f"{more / size:.2f}")
    assert tables(some)[-1].rows == (("1", "50"),)


def test_tables_json_and_plots_of_a_run(result: Result, tmp_path: Path) -> None:
    for table in tables(result):
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    value = json.loads(json.dumps(to_json(result)))
    assert [case["width"] for case in value["cases"]] == [1, 3, 1, 3]
    assert {kind["kind"] for kind in value["kinds"]["3"]} >= {EMBED, HEAD, MTP}
    for path in write_plots(result, tmp_path / "plots", "tiny"):
        assert path.read_bytes().startswith(b"\x89PNG")
