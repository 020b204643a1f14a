"""The check that every program passes before it is written: what it lets through and what not.

Negative controls: a rope swap or a dropped clamp, in the program or between kernels and references,
must raise ProgramError on the very model and inputs that a build uses.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from graphs.blocks import DecodeEnd, Layer
from graphs.chain import Call, Model
from graphs.compile.check import Exercise, ProgramError, check_program, exercises, weight_tensors
from graphs.compile.reduced import reduce
from graphs.draft_blocks import DraftDepth
from graphs.layers.rope import Rotary, frequencies
from graphs.ops import library
from graphs.plan import EnginePlan
from tests import artifacts
from tests.graphs import whole
from tests.graphs.whole import BF16, FP32, fresh_state, golden_model

PLAN = EnginePlan(widths=(1, 4), batches=(1, 4), contexts=(256,), prefill=(16,))
KINDS = ("bf16", "nvfp4-packed", "fp8")


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    artifacts.load(artifacts.eager_artifact())


@cache
def model_of(kind: str, act: torch.dtype = FP32) -> Model:
    golden = golden_model(kind)
    config, weights = reduce(golden.config, golden.weights)
    small = whole.Model(config=config, weights=weights)
    state = fresh_state(small, act, context=320, slots=9)
    tables = frequencies(config, None)
    return Model(config=config, act=act, weights=weights, state=state, frequencies=tables)


def calls(
    wanted: Callable[[Call], bool], kind: str = "bf16", act: torch.dtype = FP32
) -> Iterator[tuple[Call, list[Tensor]]]:
    """The wanted calls of the widest step of one slot, each once all before it ran; the weights."""
    model, some = model_of(kind, act), False
    weights = weight_tensors(model)
    for chain in exercises(model, PLAN):
        for call in chain.calls:
            if chain.name == "decode 4 x 1" and wanted(call):
                some = True
                yield call, weights
            call.block(*call.args)
    assert some


def is_layer(call: Call) -> bool:
    return isinstance(call.block, Layer | DraftDepth)


def itself(call: Call) -> Callable[[], object]:
    return lambda: call.block(*call.args)


def rope_swapped(call: Call) -> Callable[[], object]:
    """The block with sines for cosines and cosines for sines."""

    def swap(argument: Any) -> Any:
        if not isinstance(argument, Rotary):
            return argument
        return dataclasses.replace(argument, attention=argument.attention.roll(1, dims=-1))

    return lambda: call.block(*(swap(argument) for argument in call.args))


def unclamped(call: Call, name: str) -> Callable[[], object]:
    block = call.block
    assert isinstance(block, Layer | DraftDepth)
    layer = dataclasses.replace(block.layer, **{name: None})
    other = type(block)(block.config, block.act, layer)
    return lambda: other(*call.args)


@pytest.mark.parametrize("act", [FP32, BF16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_passes_as_its_own_program(kind: str, act: torch.dtype) -> None:
    for call, weights in calls(lambda _: True, kind, act):
        check_program(call, itself(call), weights, reference=True)


def test_the_result_of_the_block_is_left() -> None:
    call, weights = next(calls(is_layer))
    tensors = [tensor for tensor in call.tensors if not any(tensor is w for w in weights)]
    before = [tensor.clone() for tensor in tensors]
    call.block(*call.args)
    expected = [tensor.clone() for tensor in tensors]
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(old)
    check_program(call, itself(call), weights, reference=True)
    assert all(torch.equal(a, b) for a, b in zip(tensors, expected, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_a_rope_swap_in_any_layer_is_seen() -> None:
    for call, weights in calls(is_layer):
        with pytest.raises(ProgramError, match=f"{call.block.name}: the program and its block"):
            check_program(call, rope_swapped(call), weights, reference=False)


@pytest.mark.parametrize("act", [FP32, BF16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["routed_limit", "shared_limit"])
def test_a_dropped_clamp_is_seen(kind: str, name: str, act: torch.dtype) -> None:
    """Fault B10: the values that a build checks with reach the clamp in every kind of layer."""

    def clamped(call: Call) -> bool:
        block = call.block
        if not isinstance(block, Layer | DraftDepth):
            return False
        routed = block.layer.feed_forward == "moe"
        return getattr(block.layer, name) is not None and (routed or name == "shared_limit")

    for call, weights in calls(clamped, kind, act):
        with pytest.raises(ProgramError, match=f"{call.block.name}: the program and its block"):
            check_program(call, unclamped(call, name), weights, reference=False)


def test_one_bit_anywhere_is_seen() -> None:
    """Also in state, in padding and in the sign of a zero."""
    call, weights = next(calls(is_layer))
    for tensor in (call.args[0], call.args[4][..., 0, :, :], call.args[4][..., 1, :, :]):

        def program(target: Tensor = tensor) -> None:
            call.block(*call.args)
            bits = target.view(torch.int32)
            bits[-1] ^= 1 << 31

        with pytest.raises(ProgramError, match="differ"):
            check_program(call, program, weights, reference=False)


def test_a_program_that_does_nothing_is_seen() -> None:
    for call, weights in calls(is_layer):
        with pytest.raises(ProgramError, match=call.block.name):
            check_program(call, lambda: None, weights, reference=False)


def wrong_reference(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[list[Any]], object]
) -> None:
    """The reference of an operator on changed arguments."""
    operator = getattr(torch.ops.fourstep, name).default
    right = library._REFERENCES[operator]

    def wrong(*args: Any) -> Any:
        changed = list(args)
        change(changed)
        return right(*changed)

    monkeypatch.setitem(library._REFERENCES, operator, wrong)


def swap_rotary(args: list[Any]) -> None:
    args[3] = args[3].roll(args[3].shape[-1] // 2, dims=-1)


def drop_clamp(args: list[Any]) -> None:
    args[-1] = 0.0


@pytest.mark.parametrize(
    ("operator", "change"),
    [("rope_write", swap_rotary), ("dense_mlp", drop_clamp), ("routed_experts", drop_clamp)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_that_differ_from_their_references_are_seen(
    monkeypatch: pytest.MonkeyPatch, kind: str, operator: str, change: Any
) -> None:
    """As if the kernel had the fault, but with the fault in the reference."""

    def uses(call: Call) -> bool:
        if not isinstance(call.block, Layer):
            return False
        layer = call.block.layer
        routed, limit = layer.feed_forward == "moe", layer.routed_limit
        return operator == "rope_write" or (
            routed and limit is not None
            if operator == "routed_experts"
            else not routed and layer.shared_limit is not None
        )

    wrong_reference(monkeypatch, operator, change)
    for call, weights in calls(uses, kind):
        with pytest.raises(ProgramError, match=f"{call.block.name}: the kernels are .* away"):
            check_program(call, itself(call), weights, reference=True)
        check_program(call, itself(call), weights, reference=False)


def test_only_what_a_reference_can_afford_is_compared_with_it() -> None:
    def names(wanted: bool) -> list[str]:
        chains = exercises(model_of("bf16"), PLAN)
        return [chain.name for chain in chains if chain.affordable is wanted]

    assert names(True) == ["decode 1 x 1", "decode 4 x 1"]
    assert names(False) == [
        *("prefill 16 x 1", "decode 1 x 4", "decode 4 x 4", "observe 18 x 1"),
    ]


def test_batches_are_exercised_with_padding_and_different_drafts() -> None:
    [chain] = [c for c in exercises(model_of("bf16"), PLAN) if c.name == "decode 4 x 4"]
    assert isinstance(chain, Exercise)
    [end] = [call for call in chain.calls if isinstance(call.block, DecodeEnd)]
    slot_S, _, drafted_S, *_ = end.args
    assert slot_S.tolist() == [0, 1, 2, model_of("bf16").state.slots]
    assert drafted_S.tolist() == [0, 1, 2, 3]
