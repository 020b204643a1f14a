"""Chains: the blocks of one engine in order, each bound to the tensors it reads and writes.

Knows which block follows which and where each argument lives. Does not know how blocks run
(compile/) or who asks (runtime). Keeps true: every argument is a tensor at a fixed address, so a
bound chain needs no further thought at each step.

Legend: S entries of the batch, W = 1+K rows an entry, D depths of the MTP chain, R rows an entry
that the chain runs over.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphs.blocks import Block, DecodeBegin, DecodeEnd, Layer, PrefillBegin, PrefillEnd
from graphs.buffers import (
    DecodeInputs,
    DraftBuffers,
    ObserveInputs,
    Outputs,
    PrefillInputs,
    RowBuffers,
)
from graphs.config import LayerConfig, ModelConfig
from graphs.draft_blocks import DraftBegin, DraftDepth, ObserveDepth, PrefillDraftBegin
from graphs.layers.rope import Frequencies, rotary_index
from graphs.state import State
from graphs.trees import tensors_of
from graphs.weights import ModelWeights


@dataclass(frozen=True, kw_only=True)
class Call:
    """One block and its arguments."""

    block: Block
    args: tuple[Any, ...]

    @property
    def tensors(self) -> list[Tensor]:
        """The arguments as a program takes them: flat, in the order of their trees."""
        return tensors_of(self.args)


@dataclass(frozen=True, kw_only=True)
class Model:
    """What every engine of one model shares. `depths` is D, the MTP layers in use."""

    config: ModelConfig
    act: torch.dtype
    weights: ModelWeights
    state: State
    frequencies: tuple[Frequencies, ...]

    @property
    def depths(self) -> int:
        return len(self.weights.mtp)

    @property
    def device(self) -> torch.device:
        return self.weights.embed.device


@dataclass(frozen=True, kw_only=True)
class DecodeChain:
    """verify: up to the accepted drafts. draft: the next drafts, one call a depth behind the one
    that places the rows; none without MTP layers. residual: what the backbone leaves, f32 [T, H],
    until the next run."""

    inputs: DecodeInputs
    outputs: Outputs
    residual: Tensor
    verify: tuple[Call, ...]
    draft: tuple[Call, ...]


@dataclass(frozen=True, kw_only=True)
class PrefillChain:
    inputs: PrefillInputs
    outputs: Outputs
    residual: Tensor
    verify: tuple[Call, ...]
    draft: tuple[Call, ...]


@dataclass(frozen=True, kw_only=True)
class ObserveChain:
    """Catches the MTP layers up with rows that were decoded without drafting, counts how often they
    would have been right, and drafts."""

    inputs: ObserveInputs
    outputs: Outputs
    hits: Tensor  # int64 [D]
    rows: int  # that it runs over
    calls: tuple[Call, ...]


def decode_chain(model: Model, entries: int, width: int) -> DecodeChain:
    """The engine that verifies `width` positions of `entries` slots."""
    config, weights, state = model.config, model.weights, model.state
    inputs = DecodeInputs.make(config, entries, width, model.device)
    outputs = Outputs.make(entries, width, model.depths, model.device)
    body = RowBuffers.make(config, entries * width, model.act, model.device)
    begin = (inputs.slot_S, inputs.position_S, inputs.drafted_S, inputs.tokens_SW)
    verify = [
        _call(model, DecodeBegin, *begin, weights.embed, *_shared(model), body),
        *_backbone(model, body),
        _call(
            *(model, DecodeEnd, *begin, inputs.mask, body.residual, body.rows),
            *(
                weights.norm,
                weights.head,
                state.sampling,
                state.history,
                outputs.sampled,
                outputs.logprobs,
                outputs.accepted,
            ),
        ),
    ]
    draft: list[Call] = []
    if model.depths:
        assert state.history is not None
        buffers = DraftBuffers.make(
            config, entries, max(width, model.depths), outputs.drafts, model.act
        )
        draft = [
            _call(
                *(model, DraftBegin, inputs.slot_S, inputs.position_S, outputs.accepted),
                *(state.history, *_shared(model), buffers.body, buffers.ahead),
            ),
            *_depths(model, buffers),
        ]
    return DecodeChain(
        inputs=inputs,
        outputs=outputs,
        residual=body.residual,
        verify=tuple(verify),
        draft=tuple(draft),
    )


def prefill_chain(model: Model, rows: int) -> PrefillChain:
    """The engine that runs `rows` positions of one prompt."""
    config, weights, state = model.config, model.weights, model.state
    inputs = PrefillInputs.make(config, rows, model.depths, model.device)
    outputs = Outputs.make(1, 1, model.depths, model.device)
    body = RowBuffers.make(config, rows, model.act, model.device)
    begin = (inputs.slot_S, inputs.position_S, inputs.count_S)
    verify = [
        _call(model, PrefillBegin, *begin, inputs.tokens, weights.embed, *_shared(model), body),
        *_backbone(model, body),
        _call(
            *(model, PrefillEnd, *begin, inputs.known_S, inputs.tokens, inputs.mask, body.residual),
            *(weights.norm, weights.head, state.sampling),
            *(outputs.sampled, outputs.logprobs, outputs.accepted),
        ),
    ]
    draft: list[Call] = []
    if model.depths:
        assert state.history is not None
        # A prompt that goes on after an answer may replace the last sampled token as well.
        past = model.depths
        buffers = DraftBuffers.make(config, 1, past + rows, outputs.drafts, model.act)
        draft = [
            _call(
                *(model, PrefillDraftBegin, *begin, inputs.known_S, inputs.tokens),
                *(outputs.sampled[:, 0], body, state.history, *_shared(model)),
                *(buffers.body, buffers.last, buffers.ahead, buffers.known),
            ),
            *_depths(model, buffers),
        ]
    return PrefillChain(
        inputs=inputs,
        outputs=outputs,
        residual=body.residual,
        verify=tuple(verify),
        draft=tuple(draft),
    )


def observe_chain(model: Model, rows: int) -> ObserveChain:
    """The engine that catches up with `rows` new rows of one slot, behind those run again."""
    assert model.state.history is not None
    total = model.depths - 1 + rows
    inputs = ObserveInputs.make(model.device)
    outputs = Outputs.make(1, 1, model.depths, model.device)
    buffers = DraftBuffers.make(model.config, 1, total, outputs.drafts, model.act)
    begin = _call(
        *(model, DraftBegin, inputs.slot_S, inputs.end_S, outputs.accepted),
        *(model.state.history, *_shared(model), buffers.body, buffers.ahead),
    )
    calls = (begin, *_depths(model, buffers, first_S=inputs.first_S))
    return ObserveChain(
        inputs=inputs, outputs=outputs, hits=buffers.hits[0], rows=total, calls=calls
    )


def _backbone(model: Model, body: RowBuffers) -> list[Call]:
    config, state, weights = model.config, model.state, model.weights
    return [
        Call(
            block=Layer(config, model.act, layer),
            args=(
                *(body.residual, body.rows, body.rotary[rotary_index(config, layer)]),
                *(weights.layers[layer.index], state.layers[layer.index]),
                *(state.indexers[layer.index], _table(state, layer)),
            ),
        )
        for layer in config.layers
    ]


def _depths(model: Model, buffers: DraftBuffers, first_S: Tensor | None = None) -> list[Call]:
    config, state, weights = model.config, model.state, model.weights
    rows = buffers.ahead.shape[1] - model.depths
    calls = []
    for depth, layer in enumerate(config.mtp_layers[: model.depths]):
        ids_SR = buffers.ahead[:, depth : depth + rows]
        next_SR = buffers.ahead[:, depth + 1 : depth + 1 + rows]
        rotary = buffers.body.rotary[rotary_index(config, layer)]
        seen = (buffers.body.residual, buffers.body.rows, rotary, ids_SR, next_SR)
        held = (weights.embed, weights.mtp[depth], state.layers[layer.index], _table(state, layer))
        draft_S = buffers.drafts[:, depth]
        if first_S is None:
            block = DraftDepth(config, model.act, layer)
            args = (*seen, buffers.last, buffers.known[:, depth], *held, draft_S)
        else:
            block = ObserveDepth(config, model.act, layer)
            place = (first_S, buffers.depth[depth : depth + 1])
            args = (*seen, *place, *held, draft_S, buffers.hits[:, depth])
        calls.append(Call(block=block, args=args))
    return calls


def _table(state: State, layer: LayerConfig) -> Tensor:
    return state.full_table if layer.attention == "full" else state.sliding_table


def _shared(model: Model) -> tuple[Any, ...]:
    """What every block that places rows reads."""
    return model.frequencies, model.state.full_table


def _call(model: Model, block: type[Block], *args: Any) -> Call:
    return Call(block=block(model.config, model.act), args=args)
