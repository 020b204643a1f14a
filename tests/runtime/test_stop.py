"""Where a request ends: faults G1, G3, G4, G6 on the scanner and on whole requests."""

import dataclasses

import pytest

from graphs.plan import EnginePlan
from graphs.state import BLOCK
from runtime.engine import Engine, EngineError
from runtime.exchange import Committed
from runtime.generate import generate
from runtime.request import SamplingParams
from runtime.stop import Scanner
from tests.graphs.whole import golden, golden_model


@pytest.mark.parametrize(
    ("tokens", "room", "stops", "kept", "reason"),
    [
        ((5, 6, 7), 9, (), (5, 6, 7), None),
        ((5, 6, 7), 9, (6,), (5, 6), "stop"),
        ((5, 6, 7), 2, (), (5, 6), "length"),
        ((5, 6, 7), 3, (), (5, 6, 7), "length"),
        ((5, 6, 7), 2, (6,), (5, 6), "stop"),  # a stop at the cap is a stop
        ((5, 6, 7), 2, (7,), (5, 6), "length"),  # a stop beyond the cap was never emitted
        ((6, 6), 9, (6,), (6,), "stop"),
        ((5,), 1, (), (5,), "length"),
    ],
)
def test_the_first_of_stop_and_length_wins(
    tokens: tuple[int, ...],
    room: int,
    stops: tuple[int, ...],
    kept: tuple[int, ...],
    reason: str | None,
) -> None:
    params = SamplingParams(max_tokens=room, stop_token_ids=stops)
    scanned = Scanner(params).push(tokens)
    assert scanned.token_ids == kept
    assert (scanned.finish and scanned.finish.reason) == reason


SMALL = EnginePlan(batches=(1,), prefill=(64,))


def engine(draft_tokens: int, context: int = 256) -> Engine:
    model = golden_model()
    return Engine(
        *(model.config, model.weights),
        precision="fp32",
        draft_tokens=draft_tokens,
        plan=SMALL,
        context=context,
    )


def run(made: Engine, prompt: list[int], params: SamplingParams) -> tuple[list[int], str | None]:
    steps = list(generate(made, prompt, params))
    assert all(step.finish_reason is None for step in steps[:-1])
    assert all(step.accepted <= len(step.token_ids) for step in steps)
    assert len(steps[-1].drafted) <= len(steps[-1].token_ids), "drafts behind the end are counted"
    return [token for step in steps for token in step.token_ids], steps[-1].finish_reason


@pytest.mark.parametrize("draft_tokens", [0, 1, 2, 3])
@pytest.mark.parametrize("place", range(1, 12))
def test_a_stop_token_ends_at_the_same_place_for_every_k(draft_tokens: int, place: int) -> None:
    """The stop falls on every row of a verify window in turn, accepted drafts included."""
    prompt, text = golden()["prompt_60"].tolist(), golden()["greedy_60"].tolist()
    stop = text[place]
    end = text.index(stop)
    params = SamplingParams(max_tokens=30, stop_token_ids=(stop,), ignore_eos=True)
    assert run(engine(draft_tokens), prompt, params) == (text[: end + 1], "stop")


@pytest.mark.parametrize("draft_tokens", [0, 3])
@pytest.mark.parametrize("room", [1, 2, 3, 4, 5, 6, 7])
def test_length_cuts_inside_a_window(draft_tokens: int, room: int) -> None:
    prompt, text = golden()["prompt_60"].tolist(), golden()["greedy_60"].tolist()
    params = SamplingParams(max_tokens=room, ignore_eos=True)
    assert run(engine(draft_tokens), prompt, params) == (text[:room], "length")


def test_the_model_stop_ids_apply_unless_ignored() -> None:
    """Stop set {1, 2, 376} of the golden configs: eos list and generation_config."""
    prompt, text = golden()["prompt_60"].tolist(), golden()["greedy_60"].tolist()
    model = golden_model()
    assert model.config.stop_ids == (1, 2, 376)
    config = dataclasses.replace(model.config, stop_ids=(text[4],))
    made = Engine(config, model.weights, precision="fp32", plan=SMALL, context=256)
    end = text.index(text[4])
    assert run(made, prompt, SamplingParams(max_tokens=20)) == (text[: end + 1], "stop")
    ignoring = SamplingParams(max_tokens=20, ignore_eos=True)
    assert run(made, prompt, ignoring) == (text[:20], "length")


def test_a_rejected_stop_draft_does_not_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault G3: drafts propose the stop token at every step; only verified tokens count."""
    made, prompt = engine(3), golden()["prompt_60"].tolist()
    text = golden()["greedy_60"].tolist()
    stop = next(token for token in range(3, 300) if token not in text)
    plain, prefill, decode = (
        run(made, prompt, SamplingParams(max_tokens=12)),
        made.prefill,
        made.decode,
    )

    def eager_to_stop(committed: Committed) -> Committed:
        return dataclasses.replace(committed, drafts=(stop,) * 3)

    monkeypatch.setattr(made, "prefill", lambda *a: eager_to_stop(prefill(*a)))
    monkeypatch.setattr(made, "decode", lambda *a, **k: [eager_to_stop(c) for c in decode(*a, **k)])
    params = SamplingParams(max_tokens=12, stop_token_ids=(stop,))
    assert run(made, prompt, params) == plain


@pytest.mark.parametrize("draft_tokens", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [60, 24])
def test_the_last_tokens_before_the_context_end_are_right(draft_tokens: int, length: int) -> None:
    """Fault G6: a request that fills the context to its last position, which may be a block's."""
    prompt, room = golden()["prompt_60"].tolist()[:length], 40
    params = SamplingParams(max_tokens=room, ignore_eos=True)
    expected = run(engine(0), prompt, params)
    assert length != 60 or expected == (golden()["greedy_60"].tolist(), "length")
    made = engine(draft_tokens, context=length + room)
    # The last window begins at the last position but one, and its rows are somebody's as well.
    assert made.state.full_table.shape[1] * BLOCK >= length + room - 1 + draft_tokens
    assert run(made, prompt, params) == expected


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(), "empty"),
        ([5, 384], SamplingParams(max_tokens=4), "prompt token 384 is outside 0..383"),
        ([-1], SamplingParams(max_tokens=4), "prompt token -1"),
        ([5] * 60, SamplingParams(max_tokens=200), "= 260 positions exceed the context of 256"),
    ],
)
def test_what_can_never_run_is_refused(
    prompt: list[int], params: SamplingParams, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(engine(3), prompt, params)


@pytest.mark.parametrize("draft_tokens", [-1, 4])
def test_more_drafts_than_mtp_layers_are_refused(draft_tokens: int) -> None:
    """Fault A6; A7: 0 to 3 all run, see the tests above."""
    with pytest.raises(ValueError, match="3 MTP layers"):
        engine(draft_tokens)


def test_logits_that_are_not_numbers_are_an_error() -> None:
    made = engine(3)
    weights = made.weights.norm.clone()
    made.weights.norm.fill_(float("nan"))
    try:
        with pytest.raises(EngineError, match="not numbers"):
            run(made, [5, 6, 7], SamplingParams(max_tokens=4))
    finally:
        made.weights.norm.copy_(weights)


@pytest.mark.parametrize("slot", [-1, 1, 2])
def test_a_slot_that_is_not_there_is_refused(slot: int) -> None:
    """The scratch slot too: it would run and give the tokens of a request without memory."""
    with pytest.raises(ValueError, match=f"slot = {slot}: this engine has slots 0 to 0"):
        list(generate(engine(3), [5, 6, 7], SamplingParams(max_tokens=4), slot=slot))


@pytest.mark.parametrize("field", ["context", "slots"])
def test_engine_sizes_are_checked(field: str) -> None:
    model = golden_model()
    with pytest.raises(ValueError, match=f"{field} = 0"):
        Engine(model.config, model.weights, **{field: 0})  # type: ignore[arg-type]
