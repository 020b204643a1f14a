"""All mutable memory of the model: fixed-shape tensors made once, mutated in place.

Knows shapes and how a row of a slot finds its place. Does not know requests: which physical block a
slot holds at a position is in tables that the runtime fills. Keeps true: block 0 of each pool and
the last slot are scratch. Padding rows belong to the scratch slot, whose tables are all 0, so they
write nowhere that is ever read; nothing is allocated after start.

Legend: S slots without scratch, B blocks, M blocks a slot can map, P proxy_dim, G KV heads, D
head_dim, T rows of a call, C ring rows, H hidden, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphs.config import LayerConfig, ModelConfig
from graphs.history import History, make_history
from graphs.pages import zeros
from graphs.sampling import SamplingState, make_sampling
from graphs.trees import nbytes_of

BLOCK = 64  # tokens a block
OCTET = 8  # positions whose keys lie together in a pool
SCRATCH_BLOCK = 0
RING = 16  # raw indexer rows kept a slot: at least 7 + K (architecture 4.5)

Place = tuple[Tensor, Tensor]  # of a position in a pool: block, and offset in it


@dataclass(frozen=True, kw_only=True)
class IndexerState:
    """One full layer's region summaries (with their block) and ring of raw rows."""

    summary: Tensor  # [B, BLOCK/8, P] e4m3
    ring_k: Tensor  # [S+1, C, P] bf16, after norm and rope
    ring_z: Tensor  # [S+1, C, P] bf16


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything a step reads and writes besides the weights."""

    # Backbone, then MTP: pools of keys and values [B, G, BLOCK/8, 2, 8, D] in the activation dtype.
    # An octet's keys of one KV head come first, its values follow: a chosen region is one stretch
    # of memory, so that far ones are found by walking few pages.
    layers: tuple[Tensor, ...]
    indexers: tuple[IndexerState | None, ...]  # backbone
    full_table: Tensor  # [S+1, M] int64 physical blocks of the full pool
    sliding_table: Tensor  # [S+1, M] int64 physical blocks of the sliding and MTP pool
    history: History | None  # None where nothing drafts
    sampling: SamplingState

    @property
    def slots(self) -> int:
        return self.full_table.shape[0] - 1

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor, scratch included."""
        return nbytes_of(self)


for _kind in (IndexerState, State):
    torch.export.register_dataclass(_kind, serialized_type_name=f"fourstep.{_kind.__name__}")


def make_state(
    config: ModelConfig,
    *,
    slots: int,
    full_blocks: int,
    sliding_blocks: int,
    context: int,
    draft_tokens: int,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> State:
    """Zeroed state for `slots` requests of at most `context` tokens each.

    `draft_tokens` is K, the largest number of drafts a step; MTP layers past it get no memory.
    `full_blocks` and `sliding_blocks` count usable blocks; one scratch block each is added.
    """

    def pool(layer: LayerConfig) -> Tensor:
        blocks = 1 + (full_blocks if layer.attention == "full" else sliding_blocks)
        octets = (BLOCK // OCTET, 2, OCTET)
        shape = (blocks, layer.kv_heads, *octets, layer.head_dim)
        return zeros(*shape, dtype=dtype, device=device)

    def indexer(layer: LayerConfig) -> IndexerState | None:
        if layer.attention != "full" or config.sparse is None:
            return None
        width, regions = config.sparse.proxy_dim, BLOCK // config.sparse.region
        summary = zeros(
            *(1 + full_blocks, regions, width), dtype=torch.float8_e4m3fn, device=device
        )
        ring = torch.zeros(slots + 1, RING, width, dtype=torch.bfloat16, device=device)
        return IndexerState(summary=summary, ring_k=ring, ring_z=ring.clone())

    drafting = config.mtp_layers[:draft_tokens]
    table = torch.zeros(slots + 1, -(-context // BLOCK), dtype=torch.int64, device=device)
    return State(
        layers=tuple(pool(layer) for layer in (*config.layers, *drafting)),
        indexers=tuple(indexer(layer) for layer in config.layers),
        full_table=table,
        sliding_table=table.clone(),
        history=make_history(slots, config.hidden_dim, device) if drafting else None,
        sampling=make_sampling(slots, config.vocab_size, device),
    )


def physical(table: Tensor, slot: Tensor, position: Tensor) -> Place:
    """(block, offset) of logical positions. slot broadcasts against position; any shape."""
    return table[slot, position // BLOCK], position % BLOCK


def read_pool(pool: Tensor, place: Place, head: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values at places, of KV heads that broadcast against them: each [..., D]."""
    block, offset = place
    keys, values = pool[block, head, offset // OCTET, :, offset % OCTET].unbind(-2)
    return keys, values


def write_pool(pool: Tensor, place: Place, k_TGD: Tensor, v_TGD: Tensor) -> None:
    """Store keys and values of every KV head at places [T], in place."""
    block_T1, offset_T1 = (index[:, None] for index in place)
    head_G = torch.arange(pool.shape[1], device=pool.device)
    kv_TG2D = torch.stack([k_TGD, v_TGD], dim=2)
    pool[block_T1, head_G, offset_T1 // OCTET, :, offset_T1 % OCTET] = kv_TG2D
