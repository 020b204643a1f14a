"""The engine's calls by themselves: shapes chosen, limits and messages, what leaves it."""

from typing import Any

import pytest
import torch

from graphs.chain import Call
from graphs.compile.compiler import EagerCompiler, Step
from graphs.plan import EnginePlan
from graphs.sampling import BIAS
from runtime.engine import Engine
from runtime.exchange import Committed, Turn
from runtime.programs import MissingProgramError, Programs
from runtime.request import SamplingParams
from tests.graphs.random_model import random_model
from tests.graphs.whole import FP32, golden, golden_model, layer_inputs, logits
from tests.graphs.whole import fresh_state as state_of

GREEDY = SamplingParams()
PLAN = EnginePlan(widths=(1, 2, 4), batches=(1, 2), prefill=(4, 16))


def engine(**options: Any) -> Engine:
    model = golden_model()
    asked: dict[str, Any] = {"plan": PLAN, "precision": "fp32", "context": 128, **options}
    return Engine(model.config, model.weights, **asked)


def turn(token: int = 5, *, slot: int = 0, position: int = 9, drafts: int = 0) -> Turn:
    return Turn(slot=slot, position=position, token=token, drafts=(6, 7, 8)[:drafts])


def test_describe_names_every_engine() -> None:
    made = engine(slots=2)
    names = [name for name, _ in made.describe()]
    assert names == [
        *("decode width 1 batch 1", "decode width 1 batch 1 + draft"),
        *("decode width 2 batch 1", "decode width 2 batch 1 + draft"),
        *("decode width 4 batch 1", "decode width 4 batch 1 + draft"),
        *("decode width 1 batch 2", "decode width 1 batch 2 + draft"),
        *("decode width 2 batch 2", "decode width 2 batch 2 + draft"),
        *("decode width 4 batch 2", "decode width 4 batch 2 + draft"),
        *("prefill 4", "prefill 16", "observe 4", "observe 16"),
    ]
    assert not any(captured for _, captured in made.describe()), "nothing is captured on a CPU"


def test_what_is_not_needed_is_not_built() -> None:
    """One slot needs no batch of two, plain decoding one width, no drafts and nothing observed."""
    names = [name for name, _ in engine(draft_tokens=0).describe()]
    assert names == ["decode width 1 batch 1", "prefill 4", "prefill 16"]
    widths = {name.split()[2] for name, _ in engine(draft_tokens=2).describe() if "decode" in name}
    assert widths == {"1", "2", "4"}, "two drafts need three positions: four are the next size"


def test_a_plan_whose_steps_are_too_narrow_is_refused() -> None:
    with pytest.raises(ValueError, match=r"width 4 is more than .*\[1, 2\]"):
        engine(plan=EnginePlan(widths=(1, 2), batches=(1,), prefill=(16,)))


def test_rows_are_caught_up_with_whatever_the_prefill_chunks_are() -> None:
    """The MTP layers run over rows again in smaller chunks than the largest of a prompt."""
    prompt, drafts = golden()["prompt_60"].tolist(), []
    for prefill in ((16,), (100,)):
        made = engine(plan=EnginePlan(prefill=prefill))
        [token] = made.prefill(prompt, 0, GREEDY).tokens
        for position in range(60, 63):
            [committed] = made.decode([turn(token, slot=0, position=position)], draft=False)
            [token] = committed.tokens
        drafts.append(made.observe(0, 62, 3).drafts)
    assert len(drafts[0]) == 3
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_batches_are_those_that_the_slots_can_fill(count: int) -> None:
    """With more slots than the largest batch, the largest is what one call takes."""
    made = engine(slots=count, draft_tokens=0)
    batches = {name[-1] for name, _ in made.describe() if name.startswith("decode")}
    assert batches == ({"1"} if count == 1 else {"1", "2"})
    made.decode([turn(slot=slot) for slot in range(min(count, 2))])


def test_what_exceeds_the_plan_is_named() -> None:
    made = engine(slots=3, draft_tokens=1)
    with pytest.raises(ValueError, match=r"width 3 is more than .*\[1, 2\]"):
        made.decode([turn(drafts=2)])
    with pytest.raises(ValueError, match=r"batch 3 is more than .*\[1, 2\]"):
        made.decode([turn(slot=slot) for slot in range(3)])
    assert made.catch_up.sizes == (4, 16)


def test_there_is_nothing_to_observe_without_drafts() -> None:
    made = engine(draft_tokens=0)
    assert made.catch_up.sizes == ()
    with pytest.raises(AssertionError, match="no engine observes"):
        made.observe(0, 3, 1)


def test_precision_is_checked() -> None:
    with pytest.raises(ValueError, match=r"precision = 'fp16': must be one of \['bf16', 'fp32'\]"):
        engine(precision="fp16")


@pytest.mark.parametrize("draft", [True, False])
def test_logprobs_are_the_model_own(draft: bool) -> None:
    """Of the tokens committed, whatever the temperature."""
    made, model = engine(), golden_model()
    prompt = golden()["prompt_60"].tolist()[:20]
    params = SamplingParams(temperature=1.7, top_k=5, seed=3)
    committed = [made.prefill(prompt, 0, params)]
    ids = prompt + list(committed[0].tokens)
    for _ in range(6):
        drafts = committed[-1].drafts
        last = Turn(slot=0, position=len(ids) - 1, token=ids[-1], drafts=drafts)
        committed += made.decode([last], draft=draft)
        ids += committed[-1].tokens
    *_, r_TH = layer_inputs(model, torch.tensor(ids[:-1]), state_of(model))
    expected = logits(model, r_TH, FP32).log_softmax(-1)[len(prompt) - 1 :]
    found = [value for one in committed for value in one.logprobs]
    wanted = expected.gather(1, torch.tensor(ids[len(prompt) :])[:, None])[:, 0]
    assert found == pytest.approx(wanted.tolist(), abs=1e-4)
    assert all(len(one.logprobs) == len(one.tokens) for one in committed)


def test_a_step_without_drafting_commits_the_same() -> None:
    def run(draft: bool) -> Committed:
        made = engine()
        first = made.prefill(golden()["prompt_60"].tolist(), 0, GREEDY)
        last = Turn(slot=0, position=60, token=first.tokens[0], drafts=first.drafts)
        keys = made.state.layers[-1]
        before = keys.clone()
        [committed] = made.decode([last], draft=draft)
        assert torch.equal(keys, before) is not draft, "the MTP layers run only to draft"
        return committed

    with_drafts, without = run(True), run(False)
    assert (with_drafts.tokens, with_drafts.logprobs) == (without.tokens, without.logprobs)
    assert len(with_drafts.drafts) == 3
    assert without.drafts == ()


def test_padding_is_never_accepted() -> None:
    """Entries shorter than the call's width are padded with zeros, and zero may be right."""
    made = engine(slots=2)
    prompt = golden()["prompt_60"].tolist()[:20]
    for slot in (0, 1):
        made.prefill(prompt, slot, GREEDY)
        made.state.sampling.bias[slot, 0] = 1e6
        made.state.sampling.params.flags[slot] = BIAS
    short, full = made.decode(
        [
            Turn(slot=0, position=20, token=0, drafts=(0,)),
            Turn(slot=1, position=20, token=0, drafts=(0, 0, 0)),
        ]
    )
    assert (short.accepted, short.tokens) == (1, (0, 0))
    assert (full.accepted, full.tokens) == (3, (0, 0, 0, 0))


def memory_of(made: Engine, slot: int) -> list[torch.Tensor]:
    """A copy of all that the slot's rows may read."""
    state, config = made.state, made.config
    assert state.history is not None
    found = [state.history.ids[slot], state.history.hidden[slot], state.sampling.counts[slot]]
    for layer, pool in zip((*config.layers, *config.mtp_layers), state.layers, strict=True):
        blocks = (state.sliding_table if layer.window else state.full_table)[slot]
        found += [pool[blocks]]
    for indexer in state.indexers:
        if indexer is not None:
            found += [indexer.summary[state.full_table[slot]].float()]
            found += [indexer.ring_k[slot], indexer.ring_z[slot]]
    return [tensor.clone() for tensor in found]


def test_a_call_writes_to_its_own_slots_alone() -> None:
    """Fault D3: entries without a turn, and a chunk with less than its rows."""
    made = engine(slots=3, plan=EnginePlan(batches=(4,), prefill=(16,)))
    for slot in range(3):
        made.prefill([5, 6, 7, 8], slot, GREEDY)
    before = [memory_of(made, slot) for slot in (0, 2)]
    made.decode([turn(slot=1, position=4, drafts=1)])
    made.prefill([9, 8], 1, GREEDY)
    made.observe(1, 2, 1)
    for slot, one in zip((0, 2), before, strict=True):
        assert all(map(torch.equal, one, memory_of(made, slot)))


def test_calls_name_the_scratch_slot_until_they_are_told_another() -> None:
    """They run before that, to be captured."""
    made = engine(slots=2)
    for bound in made._decoders.values():
        assert (bound.inputs[0].array[:, 0] == 2).all()
    for bound in (*made._prefills.values(), *made._observers.values()):
        assert bound.inputs[0].array[0] == 2


class Recording(EagerCompiler):
    """Says which programs it was asked to load."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def load(self, call: Call, program: Any) -> Step:
        self.loaded.append(call.block.name)
        return super().load(call, program)


def test_all_programs_are_loaded_when_the_engine_is_made() -> None:
    compiler = Recording()
    made = engine(programs=Programs(compiler=compiler))
    before = len(compiler.loaded)
    made.prefill([5, 6, 7], 0, GREEDY)
    made.decode([turn()])
    assert len(compiler.loaded) == before > 0
    assert {"decode-begin", "decode-end", "prefill-begin", "observe-depth"} <= set(compiler.loaded)


def test_a_missing_program_is_named() -> None:
    with pytest.raises(MissingProgramError, match=r"no program decode-begin-[0-9a-f]{12} among"):
        engine(programs=Programs(files={}))


def test_drafts_are_bounded_by_the_layers_that_were_loaded() -> None:
    model = random_model("window over a block, two MTP layers")
    with pytest.raises(ValueError, match="2 MTP layers loaded, so 0 to 2 tokens"):
        Engine(model.config, model.weights, plan=PLAN, draft_tokens=3, context=64)
