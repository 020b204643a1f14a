"""Runners: a chain in order on a CPU; on a CUDA device one graph a shape, made at the start.

What needs a device is marked and skipped, with the reason, where there is none.
"""

import pytest
import torch
from torch.utils import _pytree as pytree

from graphs.plan import EnginePlan
from runtime import capture
from runtime.capture import CapturedRunner, HostView, Runner, make_runner
from runtime.engine import Engine
from runtime.exchange import Committed, Turn
from runtime.request import SamplingParams
from tests.graphs.whole import golden, golden_model

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is present")
SEEDED = SamplingParams(temperature=0.8, top_k=40, seed=7)


def test_on_a_cpu_a_view_is_the_tensor_itself() -> None:
    tensor = torch.arange(4)
    view = HostView.of(tensor)
    view.array[1] = 9
    assert tensor.tolist() == [0, 9, 2, 3]
    view.upload()
    view.download()
    assert view.device is view.host is tensor


def test_on_a_cpu_steps_run_in_order_at_each_run() -> None:
    ran: list[int] = []
    view = HostView.of(torch.zeros(1))
    runner = make_runner([lambda: ran.append(1), lambda: ran.append(2)], [view], [view])
    assert ran == [], "nothing runs before it is asked to"
    runner.run()
    runner.run()
    assert ran == [1, 2, 1, 2]
    assert type(runner) is Runner
    assert not runner.captured


def cuda_engine() -> Engine:
    model = golden_model()
    weights = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cuda(), model.weights)
    return Engine(
        *(model.config, weights),
        plan=EnginePlan(widths=(1, 2, 4), batches=(1, 2), prefill=(16,)),
        precision="fp32",
        context=256,
        slots=2,
    )


def decoded(made: Engine, steps: int = 16) -> list[Committed]:
    """One slot's text, drafting at each step; every third step is one draft narrower."""
    prompt = golden()["prompt_60"].tolist()
    committed = [made.prefill(prompt, 0, SEEDED)]
    position = len(prompt)
    for number in range(steps):
        last = committed[-1]
        drafts = last.drafts[: 3 - number % 3]
        turn = Turn(slot=0, position=position, token=last.tokens[-1], drafts=drafts)
        committed += made.decode([turn])
        position += len(committed[-1].tokens)
    return committed


@pytest.mark.gpu
@needs_gpu
def test_capture_changes_neither_tokens_nor_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults D1 and D2: a graph that reads stale inputs accepts next to nothing."""
    captured = decoded(cuda_engine())
    with monkeypatch.context() as patched:
        patched.setattr(capture, "CapturedRunner", Uncaptured)
        plain = decoded(cuda_engine())
    assert [one.tokens for one in captured] == [one.tokens for one in plain]
    assert [one.accepted for one in captured] == [one.accepted for one in plain]
    assert [one.drafts for one in captured] == [one.drafts for one in plain]
    assert any(one.accepted for one in captured)
    assert any(not one.accepted for one in captured[1:])


class Uncaptured(CapturedRunner):
    """The same copies and steps, run one by one."""

    captured = False

    def __init__(self, steps: list[object], inputs: list[HostView], outputs: list[HostView]):
        Runner.__init__(self, steps, inputs, outputs)  # pyright: ignore[reportArgumentType]
        self._inputs, self._outputs = inputs, outputs

    def run(self) -> None:
        self._copy_and_run(self._inputs, self._outputs)
        torch.cuda.synchronize()


@pytest.mark.gpu
@needs_gpu
def test_all_graphs_are_made_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault D6: one graph a shape, and their number stays while widths alternate (also D9)."""
    made: list[object] = []
    graph = torch.cuda.CUDAGraph

    def counted() -> object:
        made.append(None)
        return graph()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", counted)
    engine = cuda_engine()
    # Verifying alone and with drafts: six shapes of decode, a prefill and an observation.
    assert len(made) == 2 * (6 + 1 + 1)
    assert all(captured for _, captured in engine.describe())
    decoded(engine)
    engine.prefill([5, 6, 7], 1, SEEDED)
    for slots in ((0, 1), (1,), (1, 0)):
        engine.decode([Turn(slot=slot, position=90, token=5) for slot in slots], draft=False)
        engine.decode([Turn(slot=slot, position=91, token=5, drafts=(1, 2)) for slot in slots])
    engine.observe(0, 60, 5)
    assert len(made) == 2 * (6 + 1 + 1)
