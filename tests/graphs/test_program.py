"""Program keys: what differs in code differs in key, and what only memory decides does not."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from graphs.blocks import Layer
from graphs.chain import Call, Model, decode_chain, observe_chain, prefill_chain
from graphs.compile.program import OpenDims, task_of
from graphs.formats import Fp8Experts
from graphs.layers.rope import frequencies
from graphs.weights import LayerWeights, MoeWeights
from tests.graphs.whole import BF16, FP32, fresh_state, golden_model


def model_of(
    *, context: int = 200, slots: int = 2, kind: str = "bf16", act: torch.dtype = BF16
) -> Model:
    golden_one = golden_model(kind)
    return Model(
        config=golden_one.config,
        act=act,
        weights=golden_one.weights,
        state=fresh_state(golden_one, act, context=context, slots=slots),
        frequencies=frequencies(golden_one.config, None),
    )


def keys(model: Model, calls: tuple[Call, ...]) -> list[str]:
    dims = OpenDims(model.state)
    return [task_of(call, dims).key for call in calls]


def decode_keys(model: Model, entries: int = 2, width: int = 4) -> list[str]:
    chain = decode_chain(model, entries, width)
    return keys(model, (*chain.verify, *chain.draft))


def every_key(model: Model) -> list[str]:
    prefill, observe = prefill_chain(model, 16), observe_chain(model, 16)
    return [
        *decode_keys(model),
        *keys(model, (*prefill.verify, *prefill.draft, *observe.calls)),
    ]


def test_equal_layers_share_a_program_and_others_do_not() -> None:
    model = model_of()
    chain = decode_chain(model, 2, 4)
    layers = [call for call in chain.verify if isinstance(call.block, Layer)]
    found: dict[str, set[Any]] = {}
    for call, key in zip(layers, keys(model, tuple(layers)), strict=True):
        assert isinstance(call.block, Layer)
        found.setdefault(key, set()).add(dataclasses.replace(call.block.layer, index=0))
    assert all(len(kinds) == 1 for kinds in found.values())
    assert len(found) == len(set().union(*found.values())) < len(layers)
    depths = keys(model, chain.draft[1:])
    assert len(depths) == 3
    assert len(set(depths)) == 1


def test_the_size_of_the_state_changes_no_key() -> None:
    assert every_key(model_of()) == every_key(model_of(context=40, slots=1))
    assert every_key(model_of()) == every_key(model_of(context=1000, slots=7))


def test_precision_weights_and_rows_change_every_layer() -> None:
    def layers(found: list[str]) -> set[str]:
        return {key for key in found if key.startswith("layer-")}

    usual = layers(every_key(model_of()))
    assert usual
    assert not usual & layers(every_key(model_of(act=FP32)))
    assert not usual & layers(decode_keys(model_of(), entries=3))
    assert not usual & layers(decode_keys(model_of(), entries=5, width=1))
    routed = {key for key in usual if key.endswith("moe") or "-moe-" in key}
    assert routed
    assert not routed & set(every_key(model_of(kind="nvfp4-packed")))


def first_layer(kind: str = "bf16", *, routed: bool = False) -> tuple[Call, OpenDims]:
    model = model_of(kind=kind)
    for call in decode_chain(model, 2, 4).verify:
        weights = call.args[3] if isinstance(call.block, Layer) else None
        if isinstance(weights, LayerWeights) and routed == isinstance(
            weights.feed_forward, MoeWeights
        ):
            return call, OpenDims(model.state)
    raise AssertionError("no such layer")


def with_residual(call: Call, change: Callable[[Tensor], Tensor]) -> Call:
    return Call(block=call.block, args=(change(call.args[0]), *call.args[1:]))


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "type": lambda x: x.double(),
    "shape": lambda x: x[:-1],
    "stride": lambda x: x.T.contiguous().T,
    "row stride": lambda x: torch.cat([x, x], dim=1)[:, : x.shape[1]],
    "device": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_tensor_is_another_program(change: str) -> None:
    call, dims = first_layer()
    usual = task_of(call, dims)
    assert task_of(with_residual(call, torch.clone), dims).key == usual.key
    assert task_of(with_residual(call, CHANGES[change]), dims).key != usual.key


def test_numbers_among_the_weights_are_in_the_key() -> None:
    """The block size of a format: scales of the same shape may mean other blocks."""
    call, dims = first_layer("fp8", routed=True)

    def other(experts: Any) -> Any:
        assert isinstance(experts, Fp8Experts)
        return dataclasses.replace(experts, block=(experts.block[0], experts.block[1] * 2))

    weights = call.args[3]
    moe = dataclasses.replace(weights.feed_forward, gate=other(weights.feed_forward.gate))
    args = (*call.args[:3], dataclasses.replace(weights, feed_forward=moe), *call.args[4:])
    assert task_of(Call(block=call.block, args=args), dims).key != task_of(call, dims).key


def test_options_of_the_model_are_in_the_key() -> None:
    call, dims = first_layer()
    block = call.block
    assert isinstance(block, Layer)
    changed = [
        Layer(dataclasses.replace(block.config, rms_eps=1e-3), block.act, block.layer),
        Layer(block.config, FP32, block.layer),
        Layer(block.config, block.act, dataclasses.replace(block.layer, window=99)),
    ]
    usual = task_of(call, dims).key
    assert len({usual, *(task_of(Call(block=b, args=call.args), dims).key for b in changed)}) == 4
    again = Layer(block.config, block.act, dataclasses.replace(block.layer, index=7))
    assert task_of(Call(block=again, args=call.args), dims).key == usual


def test_state_that_is_not_contiguous_is_refused() -> None:
    model = model_of()
    loose = tree_map_only(Tensor, lambda x: x.T.contiguous().T if x.dim() == 2 else x, model.state)
    dims = OpenDims(loose)
    with pytest.raises(AssertionError):
        dims.spec(loose.full_table)
