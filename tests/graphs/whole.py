"""Runs the model's functions over whole sequences, for tests that look inside.

Knows the golden checkpoints and random tiny ones made from them. Keeps true: everything here starts
from zeroed state and one slot, so that what it returns depends on the tokens alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from graphs.backbone import decoder_layer, embed, head
from graphs.checkpoint import Checkpoint
from graphs.config import LayerConfig, ModelConfig
from graphs.layers.norm import rms_norm
from graphs.layers.rope import Rotary, frequencies, rotary_index, rotary_tables
from graphs.mtp import mtp_block
from graphs.rows import Rows
from graphs.state import State
from graphs.weights import ModelWeights
from runtime.blocks import mapped_state

GOLDEN = Path(__file__).parent.parent / "golden"
FP32, BF16 = torch.float32, torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class Model:
    config: ModelConfig
    weights: ModelWeights


@cache
def golden_model(kind: str = "bf16") -> Model:
    checkpoint = Checkpoint.open(GOLDEN / kind)
    return Model(config=checkpoint.config, weights=checkpoint.load())


@cache
def golden() -> dict[str, Tensor]:
    return load_file(GOLDEN / "golden.safetensors")


def fresh_state(
    model: Model, dtype: torch.dtype = FP32, *, context: int = 256, slots: int = 1
) -> State:
    """State for `slots` requests with every block mapped."""
    return mapped_state(
        model.config,
        slots=slots,
        context=context,
        largest_call=context,
        draft_tokens=3,
        dtype=dtype,
    )


def rows_at(start: int, count: int, slot: int = 0) -> Rows:
    """`count` neighbouring rows of one slot."""
    return Rows(
        slot=torch.full((count,), slot),
        position=torch.arange(start, start + count),
        valid=torch.ones(count, dtype=torch.bool),
    )


def rotary_of(config: ModelConfig, layer: LayerConfig, rows: Rows, dtype: torch.dtype) -> Rotary:
    """The tables that `layer` reads for these rows."""
    tables = rotary_tables(rows.position, frequencies(config, None), dtype)
    return tables[rotary_index(config, layer)]


def layer_inputs(
    model: Model,
    ids: Tensor,
    state: State,
    dtype: torch.dtype = FP32,
    *,
    start: int = 0,
    rows: Rows | None = None,
) -> Iterator[Tensor]:
    """The residual before each backbone layer, and last the one after all of them.

    The rows are those of slot 0 from `start` unless given.
    """
    config, weights, rows = model.config, model.weights, rows or rows_at(start, len(ids))
    r_TH = embed(ids, weights.embed)
    for layer in config.layers:
        yield r_TH
        table = state.full_table if layer.attention == "full" else state.sliding_table
        places = state.layers[layer.index], state.indexers[layer.index], table
        here = rows, rotary_of(config, layer, rows, dtype), weights.layers[layer.index]
        r_TH = decoder_layer(r_TH, *here, *places, config, layer, dtype)
    yield r_TH


def residual(
    model: Model, ids: Tensor, dtype: torch.dtype = FP32, *, chunk: int | None = None
) -> Tensor:
    """Backbone residual [n, H], optionally computed in chunks."""
    state, size = fresh_state(model, dtype), chunk or len(ids)
    parts = []
    for start in range(0, len(ids), size):
        *_, last = layer_inputs(model, ids[start : start + size], state, dtype, start=start)
        parts.append(last)
    return torch.cat(parts)


def logits(model: Model, r_TH: Tensor, dtype: torch.dtype = FP32) -> Tensor:
    return head(r_TH, model.weights.norm, model.weights.head, model.config, dtype)


def chain(
    model: Model, r_TH: Tensor, next_DT: Tensor, dtype: torch.dtype = FP32
) -> list[tuple[Tensor, Tensor]]:
    """The MTP chain over whole sequences: (hidden state, logits) of each depth.

    next [depths, T]: the token that depth d reads at each slot.
    """
    config, weights, state = model.config, model.weights, fresh_state(model, dtype)
    results = []
    for depth, ids in enumerate(next_DT):
        rows, mtp, layer = rows_at(0, len(r_TH)), weights.mtp[depth], config.mtp_layers[depth]
        places = rotary_of(config, layer, rows, dtype), state.layers[layer.index]
        here = rows, *places, state.sliding_table, config, layer, dtype
        r_TH = mtp_block(r_TH, ids, weights.embed, mtp, *here)
        results.append((r_TH, head(r_TH, mtp.head_norm, mtp.head, config, dtype)))
    return results


def drafts_from_scratch(
    model: Model, ids: Tensor, count: int, dtype: torch.dtype = FP32
) -> list[int]:
    """The drafts after committed `ids` (the last not yet processed), nothing reused (architecture
    5.2)."""
    r_TH, known, drafts = residual(model, ids[:-1], dtype), ids.tolist(), []
    for depth in range(count):
        slots = range(len(r_TH))
        next_DT = torch.tensor([[known[i + 1 + d] for i in slots] for d in range(depth + 1)])
        drafts.append(int(chain(model, r_TH, next_DT, dtype)[depth][1][-1].argmax()))
        known.append(drafts[-1])
    return drafts


def normed(model: Model, r_TH: Tensor, layer: int, dtype: torch.dtype = FP32) -> Tensor:
    """What the attention of `layer` reads."""
    return rms_norm(r_TH, model.weights.layers[layer].input_norm, model.config.rms_eps, dtype)
