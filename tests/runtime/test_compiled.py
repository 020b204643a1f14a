"""Compiled engines: the golden results, and the same bits as any other way to run the model.

Tokens and logprobs do not depend on K, on neighbours in the batch, on prefill chunks, nor on
whether programs are compiled; with negative controls that must turn these comparisons red.
"""

import dataclasses
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from graphs.blocks import Layer
from graphs.chain import Call, Model, prefill_chain
from graphs.compile.compiler import Step
from graphs.compile.inductor import InductorCompiler, joined
from graphs.compile.program import OpenDims
from graphs.layers.rope import Rotary, frequencies
from runtime.generate import generate
from runtime.request import SamplingParams
from runtime.width import AutoWidth, FixedWidth, StepCosts, WidthPolicy
from tests.artifacts import PLAN
from tests.graphs.whole import FP32, fresh_state, golden, golden_model, logits
from tests.runtime.compiled import (
    Request,
    engine,
    inductor_artifact,
    new_engine,
    programs,
    run,
    with_compiler,
)

GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SEEDED = dataclasses.replace(GREEDY, temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, seed=7)
HOT = dataclasses.replace(GREEDY, temperature=1.3, seed=2**64 - 5)
LENGTHS = (5, 60, 150)
TOLERANCE = 2e-4


def request(length: int, params: SamplingParams = GREEDY, *, cut: int | None = None) -> Request:
    return Request(tuple(golden()[f"prompt_{length}"].tolist()[:cut]), params)


REQUESTS = (
    request(60, SEEDED),
    request(5, GREEDY),
    request(150, HOT),
    request(60, GREEDY, cut=37),
)


def fresh_model() -> Model:
    whole = golden_model()
    return Model(
        config=whole.config,
        act=FP32,
        weights=whole.weights,
        state=fresh_state(whole),
        frequencies=frequencies(whole.config, None),
    )


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("draft_tokens", [0, 1, 2, 3])
def test_greedy_tokens_are_the_golden_ones(length: int, draft_tokens: int) -> None:
    [found] = run(engine(draft_tokens=draft_tokens), [request(length)], 40)
    assert list(found.tokens[:40]) == golden()[f"greedy_{length}"].tolist()
    expected = golden()[f"logits_{length}"][-1].log_softmax(-1)[found.tokens[0]]
    assert found.logprobs[0] == pytest.approx(float(expected), abs=TOLERANCE)


@pytest.mark.parametrize("length", LENGTHS)
def test_drafts_and_acceptance_are_the_golden_trace(length: int) -> None:
    [found] = run(engine(), [request(length)], 40)
    trace = golden()[f"spec_drafts_{length}"].tolist()
    assert [list(drafts) for drafts in found.drafts[: len(trace)]] == trace
    assert list(found.accepted[: len(trace)]) == golden()[f"spec_accepted_{length}"].tolist()


@pytest.mark.parametrize("length", LENGTHS)
def test_residual_and_logits_are_the_golden_ones(length: int) -> None:
    """Of every position of a prompt, chunk by chunk through the compiled programs."""
    whole = golden_model()
    model = fresh_model()
    chain, dims = prefill_chain(model, 16), OpenDims(model.state)
    steps = [programs("compiled").bind(call, dims) for call in chain.verify]
    r_TH = chain.verify[1].args[0]
    prompt, parts = golden()[f"prompt_{length}"].long(), []
    for start in range(0, len(prompt), 16):
        real = prompt[start : start + 16]
        chain.inputs.ints.copy_(torch.tensor([0, start, len(real), len(real)]))
        chain.inputs.tokens[: len(real)] = real
        for step in steps:
            step()
        parts.append(r_TH[: len(real)].clone())
    found = torch.cat(parts)
    assert (found - golden()[f"residual_{length}"]).abs().max() <= TOLERANCE
    assert (logits(whole, found) - golden()[f"logits_{length}"]).abs().max() <= TOLERANCE


def test_while_programs_run_other_threads_run_python() -> None:
    """Nobody is made to leave Python here: whoever waits gets in where it is left."""
    model = fresh_model()
    calls, dims = prefill_chain(model, 16).verify, OpenDims(model.state)
    chain = joined([programs("compiled").bind(call, dims) for call in calls])
    turns, over = [0], threading.Event()

    def other() -> None:
        while not over.is_set():
            turns[0] += 1
            time.sleep(0)

    def advanced() -> bool:
        before = turns[0]
        chain()
        return turns[0] > before

    interval, thread = sys.getswitchinterval(), threading.Thread(target=other)
    thread.start()
    sys.setswitchinterval(1000)
    try:
        assert any(advanced() for _ in range(2000))
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()


@pytest.mark.parametrize("wanted", REQUESTS, ids=["seeded", "greedy", "hot", "cut"])
def test_no_bit_depends_on_k_or_width_or_compiler(wanted: Request) -> None:
    [expected] = run(engine("eager", 0), [wanted])
    for kind in ("compiled", "eager"):
        for draft_tokens in (0, 1, 2, 3):
            [found] = run(engine(kind, draft_tokens), [wanted])
            assert found.cut(24) == expected.cut(24), (kind, draft_tokens)
    [found] = run(engine("compiled", 0, widths=(4,)), [wanted])
    assert found.cut(24) == expected.cut(24), "one row in an engine of four"


@pytest.mark.parametrize("draft_tokens", [1, 2, 3])
def test_compiled_and_eager_draft_and_accept_alike(draft_tokens: int) -> None:
    for wanted in REQUESTS:
        found = [run(engine(kind, draft_tokens), [wanted]) for kind in ("compiled", "eager")]
        assert found[0] == found[1]
        assert {0, 1} <= set(found[0][0].accepted), "nothing accepted, or nothing rejected"


@pytest.mark.parametrize("draft_tokens", [0, 3])
@pytest.mark.parametrize("kind", ["compiled", "eager"])
def test_no_bit_depends_on_neighbours(kind: str, draft_tokens: int) -> None:
    """Alone in an engine of one, alone in one of four, and among others in any seat (fault H2)."""
    alone = [run(engine(kind, draft_tokens), [wanted])[0] for wanted in REQUESTS]
    shared = engine(kind, draft_tokens, batches=(4,))
    for place, wanted in enumerate(REQUESTS):
        assert run(shared, [wanted])[0].cut(24) == alone[place].cut(24)
    for turned in (REQUESTS, REQUESTS[::-1], REQUESTS[1:], REQUESTS[2:] * 2):
        for found, wanted in zip(run(shared, turned), turned, strict=True):
            expected = alone[REQUESTS.index(wanted)]
            count = min(len(found.tokens), len(expected.tokens))
            assert found.cut(count) == expected.cut(count)
            steps = min(len(found.accepted), len(expected.accepted))
            assert found.accepted[:steps] == expected.accepted[:steps]


@pytest.mark.parametrize("draft_tokens", [0, 3])
@pytest.mark.parametrize("wanted", [REQUESTS[0], REQUESTS[2]], ids=["60", "150"])
def test_no_bit_depends_on_chunks(wanted: Request, draft_tokens: int) -> None:
    expected = run(engine(draft_tokens=draft_tokens), [wanted])
    for chunk in PLAN.prefill:
        assert run(engine(draft_tokens=draft_tokens, prefill=(chunk,)), [wanted]) == expected
    for chunk in (1, 7, 64):
        found = run(engine("eager", draft_tokens, prefill=(chunk,)), [wanted])
        assert found == expected, chunk


def policies() -> list[WidthPolicy]:
    """Every fixed width; and such as always draft, never do, or go by what they see."""
    measured = StepCosts.of(
        inductor_artifact().manifest.costs, batch=1, draft_tokens=3, catch_up=engine().catch_up
    )
    free = StepCosts(plain=1000.0, drafted=[100.0, 99.0, 98.0], look=(1.0,), limit=None)
    dear = StepCosts(plain=1.0, drafted=[900.0, 900.0, 900.0], look=(0.01,), limit=None)
    near = StepCosts(plain=1000.0, drafted=[1100.0, 1150.0, 1200.0], look=(10.0,), limit=None)
    fixed: list[WidthPolicy] = [FixedWidth(count=count) for count in range(4)]
    return fixed + [
        AutoWidth(tables={1: costs}, rates=[0.3, 0.2, 0.1])
        for costs in (measured, free, dear, near)
    ]


@pytest.mark.parametrize("params", [GREEDY, SEEDED, HOT], ids=["greedy", "seeded", "hot"])
def test_no_token_depends_on_the_width_policy(params: SamplingParams) -> None:
    """Nor on looks in between: drafts of random weights are mostly wrong."""
    prompt = golden()["prompt_60"].tolist()
    plain = [t for s in generate(engine(draft_tokens=0), prompt, params) for t in s.token_ids]
    for number, policy in enumerate(policies()):
        steps = generate(engine(), prompt, params, policy=policy)
        assert [t for step in steps for t in step.token_ids] == plain, number


def test_a_policy_looks_and_drafts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The observe path on compiled engines: after plain rows the drafts are as good as ever."""
    made, prompt = engine(), golden()["prompt_60"].tolist()
    looks: list[int] = []
    observe = made.observe

    def counted(slot: int, end: int, rows: int) -> object:
        looks.append(rows)
        return observe(slot, end, rows)

    monkeypatch.setattr(made, "observe", counted)
    free = StepCosts(plain=1000.0, drafted=[100.0, 99.0, 98.0], look=(1.0,), limit=None)
    policy = AutoWidth(tables={1: free}, rates=[0.3, 0.2, 0.1])
    wanted = iter([3, 0, 0, 0])
    monkeypatch.setattr(policy, "drafts", lambda: next(wanted, 3))
    steps = list(generate(made, prompt, GREEDY, policy=policy))
    assert [t for step in steps for t in step.token_ids] == golden()["greedy_60"].tolist()
    assert looks, "no look"
    assert any(step.drafted for step in steps[6:])


class Faulty(InductorCompiler):
    """Runs layer 1 with a fault; all else is the artifact's."""

    def __init__(self, fault: str):
        super().__init__(inductor_artifact().manifest.machine.isa)
        self.fault = fault

    def load(self, call: Call, program: Path | None) -> Step:
        block = call.block
        if not isinstance(block, Layer) or block.layer.index != 1 or self.fault == "none":
            return super().load(call, program)
        if self.fault == "rope":
            return lambda: block(*map(swapped, call.args))
        layer = dataclasses.replace(block.layer, **{self.fault: None})
        other = Layer(block.config, block.act, layer)
        return lambda: other(*call.args)


def swapped(argument: Any) -> Any:
    """Sines for cosines, if it is a table of them."""
    if not isinstance(argument, Rotary):
        return argument
    half = argument.attention.shape[-1] // 2
    return dataclasses.replace(argument, attention=argument.attention.roll(half, dims=-1))


@pytest.mark.parametrize("fault", ["none", "rope", "routed_limit", "shared_limit"])
def test_the_comparisons_see_a_fault_in_one_layer(fault: str) -> None:
    """Negative control: what the tests above call equal is not equal with the fault."""
    found = run(with_compiler(Faulty(fault)), REQUESTS[:1])
    [expected] = run(engine("eager", 0), REQUESTS[:1])
    assert (found[0].cut(24) == expected.cut(24)) is (fault == "none")
    [greedy] = run(with_compiler(Faulty(fault)), [request(150)], 40)
    right = golden()["logits_150"][-1].log_softmax(-1).max()
    assert (abs(greedy.logprobs[0] - float(right)) <= TOLERANCE) is (fault == "none")


def test_three_engines_work_side_by_side() -> None:
    made = [new_engine(programs("compiled")) for _ in range(3)]
    expected = run(engine(), [REQUESTS[0]])
    assert [run(one, [REQUESTS[0]]) for one in made] == [expected] * 3
