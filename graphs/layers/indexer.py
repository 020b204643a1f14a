"""The indexer of region-sparse attention: summaries written, regions scored and selected.

Knows architecture section 4. Its roundings (bf16 projections, norms, rope and ring; e4m3 query and
summary) are part of the model in both precisions. Keeps true: a summary is a pure function of its 8
tokens, however they were split into calls; a query sees strictly past regions; ties go to the lower
id.
"""

import torch
from torch import Tensor

from graphs.config import LayerConfig, ModelConfig, SparseConfig
from graphs.formats import to_e4m3
from graphs.layers.linear import linear
from graphs.layers.norm import layer_norm, rms_norm
from graphs.layers.rope import apply_rope, inverse_frequencies, rope_table
from graphs.state import BLOCK, RING, SCRATCH_BLOCK, IndexerState, Rows, physical
from graphs.weights import IndexerWeights

BF16 = torch.bfloat16


def update_summaries(
    h_TH: Tensor,
    rows: Rows,
    weights: IndexerWeights,
    state: IndexerState,
    table: Tensor,
    config: ModelConfig,
    layer: LayerConfig,
) -> None:
    """Store the raw row of each token and the summary of each region it completes, in place.

    All rows of a call are written before any is scored, so a region that an earlier row of a verify
    window closes is a candidate for the later ones (architecture 4.5).
    """
    k_TP, z_TP = _key_rows(h_TH, rows, weights, config, layer)
    k_TRP, z_TRP = _last_region(k_TP, z_TP, rows, state, _sparse(config).region)
    summary_TP = summarise(k_TRP, z_TRP)
    _write_summaries(summary_TP, rows, state, table, _sparse(config).region)
    _write_ring(k_TP, z_TP, rows, state)


def select_regions(
    h_TH: Tensor,
    rows: Rows,
    weights: IndexerWeights,
    state: IndexerState,
    table: Tensor,
    config: ModelConfig,
    layer: LayerConfig,
) -> tuple[Tensor, Tensor]:
    """The best past regions of each row and KV head: ids int64 [T, G, K] rising, chosen bool [T, G,
    K].

    K = min(topk, regions of the table). A row in region c has min(K, c) chosen entries; the others
    are padding (id 0). The row's own region is never among them, attention always adds it.
    """
    sparse = _sparse(config)
    score_TGR = _scores(h_TH, rows, weights, state, table, config, layer)
    regions = score_TGR.shape[-1]
    kept = min(sparse.topk, regions)
    region_R = torch.arange(regions, device=h_TH.device)
    past_TR = region_R < (rows.position // sparse.region)[:, None]
    masked_TGR = torch.where(past_TR[:, None], score_TGR, -torch.inf)
    order_TGR = masked_TGR.sort(dim=-1, descending=True, stable=True).indices
    best_TGK = order_TGR[..., :kept]
    chosen_TGK = past_TR[:, None].expand_as(score_TGR).gather(-1, best_TGK)
    # One order for the sums of attention: by id, padding last.
    ids_TGK = torch.where(chosen_TGK, best_TGK, regions).sort(dim=-1).values
    chosen_TGK = ids_TGK < regions
    return torch.where(chosen_TGK, ids_TGK, 0), chosen_TGK


def summarise(k_TRP: Tensor, z_TRP: Tensor) -> Tensor:
    """Per-dimension softmax(z)-weighted mean of a region's keys -> e4m3 [T, P] (architecture 4.2).

    Sums run token by token in float32, then bf16, then e4m3: two roundings.
    """
    k, z = k_TRP.float(), z_TRP.float()
    weight = torch.exp(z - z.amax(dim=1, keepdim=True))
    total, norm = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
    for token in range(k.shape[1]):
        total = total + weight[:, token] * k[:, token]
        norm = norm + weight[:, token]
    return to_e4m3((total / norm).to(BF16))


def _sparse(config: ModelConfig) -> SparseConfig:
    assert config.sparse is not None
    return config.sparse


def _project(h_TH: Tensor, weight: Tensor) -> Tensor:
    return linear(h_TH, weight.to(BF16)).to(BF16)


def _rotate(x_TIP: Tensor, rows: Rows, config: ModelConfig, layer: LayerConfig) -> Tensor:
    inv = inverse_frequencies(layer.rope_theta, _sparse(config).rope_dim, layer.rope_scaling)
    return apply_rope(x_TIP, *rope_table(rows.position, inv, BF16))


def _key_rows(
    h_TH: Tensor, rows: Rows, weights: IndexerWeights, config: ModelConfig, layer: LayerConfig
) -> tuple[Tensor, Tensor]:
    """Raw rows k (LayerNorm, rope) and z (neither), bf16 [T, P]."""
    norm, bias = weights.k_norm.to(BF16), weights.k_norm_bias.to(BF16)
    k_TP = layer_norm(_project(h_TH, weights.k), norm, bias, config.rms_eps, BF16)
    return _rotate(k_TP[:, None], rows, config, layer)[:, 0], _project(h_TH, weights.z)


def _last_region(
    k_TP: Tensor, z_TP: Tensor, rows: Rows, state: IndexerState, region: int
) -> tuple[Tensor, Tensor]:
    """The `region` raw rows that end at each row, [T, region, P]: from this call or else the ring.

    The ring is read before the call's rows are written, so it still holds what came before the
    call.
    """
    back_R = torch.arange(region - 1, -1, -1, device=k_TP.device)
    here_T = torch.arange(k_TP.shape[0], device=k_TP.device)
    source_TR = here_T[:, None] - back_R
    wanted_TR = (rows.position[:, None] - back_R).clamp(min=0)
    inside_TR = source_TR.clamp(min=0)
    in_call_TR = (
        (source_TR >= 0)
        & (rows.slot[inside_TR] == rows.slot[:, None])
        & (rows.position[inside_TR] == wanted_TR)
    )
    place_TR = wanted_TR % RING
    old_k = state.ring_k[rows.slot[:, None], place_TR]
    old_z = state.ring_z[rows.slot[:, None], place_TR]
    from_call = in_call_TR[..., None]
    return torch.where(from_call, k_TP[inside_TR], old_k), torch.where(
        from_call, z_TP[inside_TR], old_z
    )


def _write_summaries(
    summary_TP: Tensor, rows: Rows, state: IndexerState, table: Tensor, region: int
) -> None:
    """Rows that close no region write to the scratch block."""
    block, offset = physical(table, rows.slot, rows.position)
    closes = rows.position % region == region - 1
    block = torch.where(closes, block, SCRATCH_BLOCK)
    place = (block, offset // region)
    state.summary.view(torch.uint8).index_put_(place, summary_TP.view(torch.uint8))


def _write_ring(k_TP: Tensor, z_TP: Tensor, rows: Rows, state: IndexerState) -> None:
    """A row that a later one of this call would overwrite goes to the scratch slot instead."""
    scratch = state.ring_k.shape[0] - 1
    slot = rows.slot
    if slot.shape[0] > RING:
        later = torch.cat([slot[RING:], torch.full_like(slot[:RING], scratch)])
        slot = torch.where(later == slot, scratch, slot)
    place = (slot, rows.position % RING)
    state.ring_k.index_put_(place, k_TP)
    state.ring_z.index_put_(place, z_TP)


def _scores(
    h_TH: Tensor,
    rows: Rows,
    weights: IndexerWeights,
    state: IndexerState,
    table: Tensor,
    config: ModelConfig,
    layer: LayerConfig,
) -> Tensor:
    """f32 [T, G, R]: sum over the group's heads of w * relu(<q, summary>) (architecture 4.3)."""
    sparse = _sparse(config)
    per_group = sparse.heads // sparse.groups
    q_TIP = _project(h_TH, weights.q).unflatten(-1, (sparse.heads, sparse.proxy_dim))
    q_TIP = rms_norm(q_TIP, weights.q_norm.to(BF16), config.rms_eps, BF16)
    q_TIP = to_e4m3(_rotate(q_TIP, rows, config, layer)).float()
    w_TI = _project(h_TH, weights.w).float() * per_group**-0.5
    summary_TRP = _context_summaries(state, table, rows, BLOCK // sparse.region)
    dot_TIR = torch.matmul(q_TIP, summary_TRP.transpose(1, 2))
    product_TIR = w_TI[..., None] * torch.relu(dot_TIR)
    product_TGIR = product_TIR.unflatten(1, (sparse.groups, per_group))
    score_TGR = product_TGIR[:, :, 0]
    for head in range(1, per_group):
        score_TGR = score_TGR + product_TGIR[:, :, head]
    return score_TGR


def _context_summaries(state: IndexerState, table: Tensor, rows: Rows, per_block: int) -> Tensor:
    """Every summary a row's table maps, f32 [T, R, P]; those not written yet are masked later."""
    codes = state.summary.view(torch.uint8)[table[rows.slot]]  # [T, M, per_block, P]
    return codes.view(torch.float8_e4m3fn).float().flatten(1, 2)
