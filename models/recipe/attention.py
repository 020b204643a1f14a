"""Attention for training: whole sequences, sliding or region-sparse, and the indexer's loss.

Knows architecture 3.3-3.7 and 4 without paging; a row may hold several segments (chats), and no
token sees another segment. Keeps true: what a query sees is what inference lets it see; the
indexer learns from the attention's mass alone and never moves the rest of the model.

Legend: B batch, T sequence, G KV heads, J query heads of one KV head, D head dim, W window,
R regions, P proxy dim, I indexer heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.formats import to_e4m3
from graphs.layers.norm import layer_norm
from graphs.ops.norm import rms_norm_reference as rms_norm
from graphs.ops.rotary import apply_rope
from models.recipe.dims import Dims

NEVER = float("-inf")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where tokens stand: segment starts and rotary tables gathered by position in the segment."""

    starts_BT: Tensor
    sliding: tuple[Tensor, Tensor]
    full: tuple[Tensor, Tensor]
    indexer: tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class IndexerReport:
    """Scalars of one full layer: KL loss, mass covered by the selection, and by a random one."""

    loss: Tensor
    recall: Tensor
    random: Tensor


def sliding_attention(
    q_BTND: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, starts_BT: Tensor, window: int
) -> Tensor:
    """Each query sees at most `window` keys, itself included. [B, T, N, D] bf16."""
    b, t, n, d = q_BTND.shape
    g, blocks = k_BTGD.shape[2], t // window
    assert t % window == 0
    q = q_BTND.view(b, blocks, window, g, n // g, d).permute(0, 1, 3, 4, 2, 5)

    def with_previous(x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, 0, 0, window, 0)).view(b, blocks + 1, window, g, d)
        return torch.cat([padded[:, :-1], padded[:, 1:]], 2).permute(0, 1, 3, 2, 4).unsqueeze(3)

    at = torch.arange(window, device=q.device)
    key = torch.arange(2 * window, device=q.device)
    in_window = (key > at[:, None]) & (key <= at[:, None] + window)
    key_position = torch.arange(blocks, device=q.device)[:, None] * window - window + key
    in_segment = key_position[None, :, None] >= starts_BT.view(b, blocks, window, 1)
    visible = (in_window & in_segment)[:, :, None, None]
    out = _attend(q, with_previous(k_BTGD), with_previous(v_BTGD), visible)
    return out.permute(0, 1, 4, 2, 3, 5).reshape(b, t, n, d)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Float32 logits of q [..., J, Q, D] against k [..., 1, L, D]."""
    scaled = q.flatten(-3, -2).float() * q.shape[-1] ** -0.5
    return (scaled @ k.squeeze(-3).float().mT).view(*q.shape[:-1], k.shape[-2])


def _weigh(p: Tensor, v: Tensor) -> Tensor:
    """Probabilities [..., J, Q, L], rounded to bf16, times v [..., 1, L, D] -> bf16."""
    shape = p.shape[:-1]
    out = p.bfloat16().flatten(-3, -2) @ v.squeeze(-3)
    return out.view(*shape, v.shape[-1])


def _attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return _weigh(torch.softmax(_scores(q, k).masked_fill(~visible, NEVER), -1), v)


def _to_e4m3(x: Tensor) -> Tensor:
    """Round to e4m3 in the forward pass, the identity in the backward pass; float32."""
    rounded = to_e4m3(x.detach()).float()
    return x.float() + (rounded - x.float()).detach()


def region_scores(h_BTH: Tensor, w: Mapping[str, Tensor], place: Place, dims: Dims) -> Tensor:
    """Indexer scores of every region for every query, float32 [B, G, T, R] (architecture 4.1-4.3).

    `w` maps the tensor names below self_attn. without the `sparse_indexer_` prefix.
    """
    b, t, _ = h_BTH.shape
    groups, per_group = dims.groups, dims.index_heads // dims.groups
    q = F.linear(h_BTH, w["q.weight"]).view(b, t, dims.index_heads, dims.proxy)
    q = rms_norm(q, w["q_norm.weight"].bfloat16(), dims.eps, torch.bfloat16)
    q = _to_e4m3(apply_rope(q, *place.indexer))
    k = F.linear(h_BTH, w["k.weight"])
    norm = w["k_norm.weight"].bfloat16(), w["k_norm.bias"].bfloat16()
    k = layer_norm(k, *norm, dims.eps, torch.bfloat16)
    k = apply_rope(k.unsqueeze(2), *place.indexer).squeeze(2)
    z = F.linear(h_BTH, w["z.weight"])
    shape = (b, t // dims.region, dims.region, dims.proxy)
    share = torch.softmax(z.float().view(shape), 2)
    summary_BRP = _to_e4m3((share * k.float().view(shape)).sum(2).bfloat16())
    head_weight = F.linear(h_BTH, w["w.weight"]).float() * per_group**-0.5
    dots_BTIR = torch.relu(q.flatten(1, 2) @ summary_BRP.mT).view(b, t, dims.index_heads, -1)
    weighted = dots_BTIR * head_weight[..., None]
    return weighted.view(b, t, groups, per_group, -1).sum(3).transpose(1, 2)


def candidate_regions(starts_BT: Tensor, region: int) -> Tensor:
    """Which regions are strictly past and of the query's segment: bool [B, 1, T, R]."""
    t = starts_BT.shape[1]
    regions = torch.arange(t // region, device=starts_BT.device)
    own = torch.arange(t, device=starts_BT.device)[:, None] // region
    in_segment = regions >= starts_BT[..., None] // region
    return ((regions < own) & in_segment).unsqueeze(1)


def select_regions(scores: Tensor, candidates: Tensor, top: int) -> Tensor:
    """The `top` best candidates of each query, ties to the lower region: bool like `scores`."""
    ranked = scores.detach().masked_fill(~candidates, NEVER)
    best = torch.sort(ranked, dim=-1, descending=True, stable=True).indices[..., :top]
    chosen = torch.zeros_like(ranked, dtype=torch.bool).scatter(-1, best, True)
    return chosen & candidates


def indexer_report(scores: Tensor, mass: Tensor, candidates: Tensor, top: int) -> IndexerReport:
    """Compare scores with the attention's mass of each region, both [B, G, T, R]; mass detached.

    The loss is the KL divergence of the scores' softmax from the mass, weighted by the mass.
    """
    mass = mass * candidates
    total = mass.sum(-1, keepdim=True)
    target = mass / total.clamp_min(1e-9)
    log_p = torch.log_softmax(scores.masked_fill(~candidates, -1e4), -1)
    divergence = (torch.xlogy(target, target) - target * log_p) * total
    kl = divergence.sum() / total.sum().clamp_min(1e-9)
    count = candidates.sum(-1, keepdim=True)
    contested = total * (count > top)
    covered = (mass * select_regions(scores, candidates, top)).sum(-1, keepdim=True)
    by_chance = (contested * top / count.clamp_min(1)).sum()
    weight = contested.sum().clamp_min(1e-9)
    recall = (covered * (count > top)).sum() / weight
    return IndexerReport(loss=kl, recall=recall, random=by_chance / weight)


def full_attention(
    q_BTND: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, scores: Tensor, starts_BT: Tensor, dims: Dims,
    *, sparse: bool,
) -> tuple[Tensor, IndexerReport]:  # fmt: skip
    """Attention over the selected regions and the query's own (all regions when not sparse)."""
    b, t, n, d = q_BTND.shape
    g = k_BTGD.shape[2]
    q = q_BTND.view(b, t, g, n // g, d).permute(0, 2, 3, 1, 4)
    k, v = (x.transpose(1, 2).unsqueeze(2) for x in (k_BTGD, v_BTGD))
    position = torch.arange(t, device=q.device)
    causal = (position <= position[:, None]) & (position >= starts_BT[..., None])
    logits = _scores(q, k).masked_fill(~causal[:, None, None], NEVER)
    p = torch.softmax(logits, -1)
    candidates = candidate_regions(starts_BT, dims.region)
    mass = p.detach().unflatten(-1, (-1, dims.region)).sum((-1, 2))
    report = indexer_report(scores, mass, candidates, dims.top_regions)
    if sparse:
        own = position[:, None] // dims.region == torch.arange(t // dims.region, device=q.device)
        chosen = select_regions(scores, candidates, dims.top_regions) | own
        seen = chosen.repeat_interleave(dims.region, -1).unsqueeze(2)
        p = p * seen
    out = _weigh(p, v)
    if sparse:
        # the softmax over what is seen: cheaper than a second softmax of the logits
        out = (out.float() / p.sum(-1, keepdim=True)).bfloat16()
    return out.permute(0, 3, 1, 2, 4).reshape(b, t, n, d), report
