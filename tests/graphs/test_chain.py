"""Chains: every block, exported for its program, writes what it writes when run as it is.

Bit for bit in every tensor, over whole decode, prefill and observe chains of the golden model;
equal keys share one exported program, as they share one compiled. Exported for one size of the
state and run with another: slots, blocks and table columns are open.
"""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from graphs.chain import Call, Model, decode_chain, observe_chain, prefill_chain
from graphs.compile.inductor import export
from graphs.compile.program import OpenDims, task_of
from graphs.layers.rope import frequencies
from tests.graphs.whole import BF16, FP32, fresh_state, golden, golden_model

SLOT, START = 0, 13


def model_of(*, context: int, slots: int, kind: str = "bf16", act: torch.dtype = FP32) -> Model:
    golden_one = golden_model(kind)
    return Model(
        config=golden_one.config,
        act=act,
        weights=golden_one.weights,
        state=fresh_state(golden_one, act, context=context, slots=slots),
        frequencies=frequencies(golden_one.config, None),
    )


def calls_of(model: Model) -> dict[str, tuple[Call, ...]]:
    """Chains that prefill a prompt of 13 tokens, verify three drafts and catch up with 16 rows."""
    prompt = golden()["prompt_60"].long()
    prefill, decode, observe = (
        prefill_chain(model, 16),
        decode_chain(model, 2, 4),
        observe_chain(model, 16),
    )
    prefill.inputs.ints.copy_(torch.tensor([SLOT, 0, START, START]))
    prefill.inputs.tokens[:START] = prompt[:START]
    decode.inputs.ints[0] = torch.tensor([SLOT, START, 3, *prompt[START : START + 4]])
    decode.inputs.ints[1, 0] = model.state.slots  # the other entry is padding
    observe.inputs.ints.copy_(torch.tensor([SLOT, START, 2]))
    model.state.sampling.params.temperature[SLOT] = 0.7
    return {
        "prefill": (*prefill.verify, *prefill.draft),
        "decode": (*decode.verify, *decode.draft),
        "observe": observe.calls,
    }


def bytes_of(tree: object) -> list[Tensor]:
    leaves = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [x.view(torch.uint8) if x.element_size() == 1 else x for x in leaves]


def changed(one: Sequence[Tensor], other: Sequence[Tensor]) -> list[int]:
    """Where the bits differ (of numbers: these are never NaN)."""
    pairs = zip(one, other, strict=True)
    return [place for place, (a, b) in enumerate(pairs) if not torch.equal(a, b)]


def run_both(call: Call, program: Callable[..., object], where: str) -> None:
    """Run the call, and the program on a copy of its arguments; hold them against each other."""
    theirs, before = copy.deepcopy(call.args), bytes_of(copy.deepcopy(call.args))
    with torch.no_grad():
        call.block(*call.args)
        program(*theirs)
    assert changed(before, bytes_of(call.args)), where
    assert not changed(bytes_of(call.args), bytes_of(theirs)), where


@pytest.mark.parametrize(("kind", "act"), [("bf16", FP32), ("nvfp4-packed", BF16)])
def test_exported_blocks_write_what_the_eager_ones_write(kind: str, act: torch.dtype) -> None:
    programs: dict[str, Callable[..., object]] = {}
    count = 0
    for context, slots in ((300, 3), (40, 1)):
        model = model_of(context=context, slots=slots, kind=kind, act=act)
        dims = OpenDims(model.state)
        for chain, calls in calls_of(model).items():
            for call in calls:
                task, count = task_of(call, dims), count + 1
                if task.key not in programs:
                    assert slots == 3, f"{task.key}: the sizes of the state must not matter"
                    programs[task.key] = export(task).module(check_guards=False)
                run_both(call, programs[task.key], f"{chain}: {task.key}")
    assert len(programs) < count / 2
