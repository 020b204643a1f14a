"""The indexer of region-sparse attention: summaries written, regions chosen.

Binds a layer's weights and state to the operators that know the maths (ops/summaries.py,
ops/regions.py; architecture 4). Keeps true: the indexer works on bf16 rows in both precisions.
"""

import torch
from torch import Tensor

from graphs.config import SparseConfig
from graphs.layers.rope import Rotary
from graphs.ops.regions import select_regions
from graphs.ops.summaries import update_summaries
from graphs.rows import Rows
from graphs.state import IndexerState
from graphs.weights import IndexerWeights

BF16 = torch.bfloat16


def index_keys(
    kz_TP: Tensor,
    rows: Rows,
    rotary: Rotary,
    weights: IndexerWeights,
    state: IndexerState,
    table: Tensor,
    sparse: SparseConfig,
    eps: float,
) -> None:
    """Store the raw row of each token (projected keys, then weight logits: [T, 2P]) and the summary
    of each region it completes, in place."""
    assert rotary.indexer is not None
    update_summaries(
        *(kz_TP.to(BF16), weights.k_norm, weights.k_norm_bias, rotary.indexer),
        *(rows.slot, rows.position, table, state.summary, state.ring_k, state.ring_z),
        *(sparse.region, eps),
    )


def choose_regions(
    h_TH: Tensor,
    rows: Rows,
    rotary: Rotary,
    weights: IndexerWeights,
    state: IndexerState,
    table: Tensor,
    sparse: SparseConfig,
    eps: float,
) -> Tensor:
    """The best past regions of each row and KV head: ids int64 [T, G, K] rising, then -1.

    K = min(topk, regions of the table). The row's own region is never among them.
    """
    assert rotary.indexer is not None
    return select_regions(
        *(h_TH, weights.q, weights.w, weights.q_norm, rotary.indexer),
        *(rows.slot, rows.position, table, state.summary),
        *(sparse.heads, sparse.groups, sparse.topk, sparse.region, eps),
    )
