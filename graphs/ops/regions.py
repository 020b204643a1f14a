"""Operator fourstep::select_regions: the past regions that each row and KV head attends to.

Knows architecture 4.1 (queries), 4.3 and 4.4. Its roundings (bf16 projections, norm and rope; e4m3
query) are part of the model in both precisions. Keeps true: a query sees strictly past regions; the
order of scores is exact, minus zero equals zero, ties go to the lower id. A row with at most K past
regions has them all, whatever their scores: a kernel need not compute those.

Legend: T rows, H hidden, I indexer heads, P proxy_dim, G KV heads, R regions of the table, K =
min(topk, R), M table columns.
"""

import torch
from torch import Tensor

from graphs.formats import to_e4m3
from graphs.ops.library import define
from graphs.ops.linear import product
from graphs.ops.norm import rms_norm_reference
from graphs.ops.rotary import rotate

BF16 = torch.bfloat16


def select(score_TGR: Tensor, past_T: Tensor, topk: int) -> Tensor:
    """The best `topk` of each row's first `past` regions: ids int64 [T, G, K] rising, then -1."""
    regions = score_TGR.shape[-1]
    past_TGR = (torch.arange(regions, device=past_T.device) < past_T[:, None, None]).expand_as(
        score_TGR
    )
    masked_TGR = torch.where(past_TGR, score_TGR, -torch.inf)
    order_TGR = masked_TGR.sort(dim=-1, descending=True, stable=True).indices
    best_TGK = order_TGR[..., : min(topk, regions)]
    # One order for the sums of attention: by id, padding last.
    ids_TGK = torch.where(past_TGR.gather(-1, best_TGK), best_TGK, regions).sort(dim=-1).values
    return torch.where(ids_TGK < regions, ids_TGK, -1)


def _select_regions(
    h: Tensor,
    q_weight: Tensor,
    w_weight: Tensor,
    q_norm: Tensor,
    rotary: Tensor,
    slot: Tensor,
    position: Tensor,
    table: Tensor,
    summary: Tensor,
    heads: int,
    groups: int,
    topk: int,
    region: int,
    eps: float,
) -> Tensor:
    q_TIP = _project(h, q_weight).unflatten(-1, (heads, -1))
    q_TIP = rotate(rms_norm_reference(q_TIP, q_norm.to(BF16), eps, BF16), rotary)
    w_TI = _project(h, w_weight).float() * (heads // groups) ** -0.5
    score_TGR = _scores(to_e4m3(q_TIP).float(), w_TI, _context(summary, table, slot), groups)
    return select(score_TGR, position // region, topk)


def _project(h_TH: Tensor, weight: Tensor) -> Tensor:
    return product(h_TH, weight.to(BF16)).to(BF16)


def _context(summary: Tensor, table: Tensor, slot: Tensor) -> Tensor:
    """Every summary a row's table maps, f32 [T, R, P]; those not written yet are masked later."""
    codes = summary.view(torch.uint8)[table[slot]]  # [T, M, regions a block, P]
    return codes.view(torch.float8_e4m3fn).float().flatten(1, 2)


def _scores(q_TIP: Tensor, w_TI: Tensor, summary_TRP: Tensor, groups: int) -> Tensor:
    """f32 [T, G, R]: sum over the group's heads of w * relu(<q, summary>) (architecture 4.3)."""
    dot_TIR = torch.matmul(q_TIP, summary_TRP.transpose(1, 2))
    product_TIR = w_TI[..., None] * torch.relu(dot_TIR)
    first, *others = product_TIR.unflatten(1, (groups, -1)).unbind(dim=2)
    score_TGR = first
    for product_TGR in others:
        score_TGR = score_TGR + product_TGR
    return score_TGR


def _fake(
    h: Tensor,
    q_weight: Tensor,
    w_weight: Tensor,
    q_norm: Tensor,
    rotary: Tensor,
    slot: Tensor,
    position: Tensor,
    table: Tensor,
    summary: Tensor,
    heads: int,
    groups: int,
    topk: int,
    region: int,
    eps: float,
) -> Tensor:
    kept = min(topk, table.shape[1] * summary.shape[1])
    return slot.new_empty(slot.shape[0], groups, kept)


# h [T, H] in the activation dtype; q_weight [I*P, H], w_weight [I, H] and q_norm [P] are used as
# bf16; rotary bf16-rounded f32 [T, rope_dim]; summary e4m3 [B, 64/region, P] -> ids int64 [T, G,
# K]. A row in region c has min(K, c) of them; its own region is never one, attention always adds
# it.
select_regions = define(
    "select_regions(Tensor h, Tensor q_weight, Tensor w_weight, Tensor q_norm, Tensor rotary, "
    "Tensor slot, Tensor position, Tensor table, Tensor summary, int heads, int groups, int topk, "
    "int region, float eps) -> Tensor",
    _select_regions,
    _fake,
)
