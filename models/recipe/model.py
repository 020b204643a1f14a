"""Step-5's mathematics on whole sequences, differentiable (architecture 3-5).

Knows parameters by their release names in a flat dict of float32 masters; matrix products run in
bf16. Does not know losses or data. Keeps true: with the same weights it gives the logits that the
inference code gives, up to float rounding; a row's segments do not see each other.

Legend: B batch, T sequence, H hidden, V vocabulary, N heads, G KV heads, D head dim, M = B * T.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.layers.activation import swiglu
from graphs.layers.rope import inverse_frequencies
from graphs.ops.norm import rms_norm_reference as rms_norm
from graphs.ops.rotary import apply_rope, rope_table
from models.recipe.attention import (
    IndexerReport,
    Place,
    full_attention,
    region_scores,
    sliding_attention,
)
from models.recipe.dims import Dims, shapes
from models.recipe.experts import expert_load, rounded_to_nvfp4, route, routed_experts

BF16 = torch.bfloat16
SSMAX = 0.08495759963989258  # every value of the release; unused (architecture 3.6)
LONGEST = 1024


def initial_parameters(dims: Dims, seed: int) -> dict[str, Tensor]:
    """Float32 masters by release name: what adds to the residual starts at zero."""
    generator = torch.Generator().manual_seed(seed)
    result: dict[str, Tensor] = {}
    for name, shape in shapes(dims).items():
        if name.endswith("ssmax_s"):
            result[name] = torch.full(shape, SSMAX)
        elif name.endswith("sparse_indexer_k_norm.weight"):
            result[name] = torch.ones(shape)
        elif len(shape) == 1 or name.endswith(("o_proj.weight", "down_proj.weight")):
            result[name] = torch.zeros(shape)
        else:
            std = 0.5 if "embed_tokens" in name else shape[-1] ** -0.5
            std = 0.02 if name.startswith("lm_head") or "shared_head.output" in name else std
            result[name] = torch.randn(shape, generator=generator) * std
    return result


def is_constant(name: str) -> bool:
    """True for tensors that no gradient moves: the router's bias and ssmax_s."""
    return name.endswith(("router_bias", "ssmax_s"))


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """What the backbone gives: residual before the final norm f32 [B, T, H], logits bf16
    [B, T, V], a report per full layer, rows per expert of each MoE layer [layers, E]."""

    residual: Tensor
    logits: Tensor
    indexers: list[IndexerReport]
    load: Tensor


class Model:
    """Functions over one parameter dict. `quantised` rounds the routed experts to NVFP4."""

    def __init__(self, dims: Dims, parameters: Mapping[str, Tensor], device: torch.device) -> None:
        self.dims, self.parameters = dims, parameters
        self.device = device
        self.quantised = False
        positions = torch.arange(LONGEST)
        tables = {
            "sliding": (dims.theta, dims.head_dim),
            "full": (dims.theta_full, dims.rotary_full),
            "indexer": (dims.theta_full, dims.index_rope),
        }
        self.tables = {
            kind: tuple(
                table.to(device)
                for table in rope_table(positions, inverse_frequencies(theta, rot, None), BF16)
            )
            for kind, (theta, rot) in tables.items()
        }

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.parameters[name].to(BF16))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.parameters[name], self.dims.eps, BF16)

    def place(self, starts_BT: Tensor) -> Place:
        """Rotary tables and segment starts of a batch."""
        position = torch.arange(starts_BT.shape[1], device=starts_BT.device) - starts_BT
        gathered = {kind: (c[position], s[position]) for kind, (c, s) in self.tables.items()}
        return Place(starts_BT=starts_BT, **gathered)

    def _attention(
        self, h_BTH: Tensor, layer: int, place: Place, sparse: bool
    ) -> tuple[Tensor, IndexerReport | None]:
        dims, prefix = self.dims, f"model.layers.{layer}.self_attn."
        shape = (*h_BTH.shape[:2], -1, dims.head_dim)
        full = layer in dims.full_layers
        table = place.full if full else place.sliding
        q, k, v = (self._linear(h_BTH, f"{prefix}{x}_proj.weight").view(shape) for x in "qkv")
        q = apply_rope(self._norm(q, prefix + "q_norm.weight"), *table)
        k = apply_rope(self._norm(k, prefix + "k_norm.weight"), *table)
        report = None
        if full:
            scores = self.region_scores(h_BTH.detach(), layer, place)
            out, report = full_attention(q, k, v, scores, place.starts_BT, dims, sparse=sparse)
        else:
            out = sliding_attention(q, k, v, place.starts_BT, dims.window)
        gate = torch.sigmoid(self._linear(h_BTH, prefix + "g_proj.weight").float()).to(BF16)
        out = (out.float() * gate.float().unsqueeze(-1)).to(BF16)
        return self._linear(out.flatten(2), prefix + "o_proj.weight").float(), report

    def region_scores(self, h_BTH: Tensor, layer: int, place: Place) -> Tensor:
        """The indexer's scores of a full layer, float32 [B, G, T, R]."""
        start = f"model.layers.{layer}.self_attn.sparse_indexer_"
        own = {n[len(start) :]: p for n, p in self.parameters.items() if n.startswith(start)}
        own = {n: p if "norm" in n else p.to(BF16) for n, p in own.items()}
        return region_scores(h_BTH, own, place, self.dims)

    def _dense(self, h: Tensor, prefix: str) -> Tensor:
        gate, up = (self._linear(h, f"{prefix}.{x}_proj.weight") for x in ("gate", "up"))
        return self._linear(swiglu(gate, up, self.dims.limit), f"{prefix}.down_proj.weight")

    def _moe(self, h_BTH: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        dims, prefix = self.dims, f"model.layers.{layer}"
        p = self.parameters
        h_MH = h_BTH.flatten(0, 1)
        gate = p[f"{prefix}.moe.gate.weight"].to(BF16)
        bias = p[f"{prefix}.moe.router_bias"]
        ids, weights = route(h_MH, gate, bias, dims.chosen, dims.routed_scale)
        experts = tuple(p[f"{prefix}.moe.{x}_proj.weight"] for x in ("gate", "up", "down"))
        if self.quantised:
            experts = tuple(rounded_to_nvfp4(w) for w in experts)
        gate_w, up_w, down_w = (w.to(BF16) for w in experts)
        routed = routed_experts(h_MH, ids, weights, (gate_w, up_w, down_w), dims.limit)
        shared = self._dense(h_BTH, f"{prefix}.share_expert")
        return routed.float().view_as(h_BTH) + shared.float(), expert_load(ids, dims.experts)

    def layer(
        self, r_BTH: Tensor, layer: int, place: Place, *, sparse: bool = False
    ) -> tuple[Tensor, IndexerReport | None, Tensor | None]:
        """One decoder block on the float32 residual."""
        prefix = f"model.layers.{layer}"
        h = self._norm(r_BTH, f"{prefix}.input_layernorm.weight")
        attended, report = self._attention(h, layer, place, sparse)
        r_BTH = r_BTH + attended
        h = self._norm(r_BTH, f"{prefix}.post_attention_layernorm.weight")
        if layer not in self.dims.moe_layers:
            return r_BTH + self._dense(h, f"{prefix}.mlp").float(), report, None
        out, load = self._moe(h, layer)
        return r_BTH + out, report, load

    def _embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.parameters["model.embed_tokens.weight"].to(BF16))

    def trunk(self, tokens_BT: Tensor, place: Place, *, sparse: bool) -> Trunk:
        """The backbone: residual, logits, indexer reports and expert loads."""
        r = self._embed(tokens_BT).float()
        reports, loads = [], []
        for layer in range(self.dims.layers):
            r, report, load = self.layer(r, layer, place, sparse=sparse)
            reports += [report] if report is not None else []
            loads += [load] if load is not None else []
        y = self._norm(r.to(BF16), "model.norm.weight")
        logits = self._linear(y, "lm_head.weight")
        return Trunk(residual=r, logits=logits, indexers=reports, load=torch.stack(loads))

    def mtp(self, residual_BTH: Tensor, next_BTD: Tensor, place: Place) -> list[Tensor]:
        """Draft logits bf16 [B, T, V] of each depth (architecture 5.1).

        next_BTD[:, i, d] is token i + 1 + d; depth d's logits at i predict token i + 2 + d.
        """
        logits, hidden = [], residual_BTH
        for depth in range(self.dims.mtp_layers):
            layer = self.dims.layers + depth
            prefix = f"model.layers.{layer}"
            e = self._norm(self._embed(next_BTD[..., depth]), f"{prefix}.enorm.weight")
            h = self._norm(hidden.to(BF16), f"{prefix}.hnorm.weight")
            x = self._linear(torch.cat([e, h], -1), f"{prefix}.eh_proj.weight").float()
            hidden, _, _ = self.layer(x, layer, place)
            y = self._norm(hidden.to(BF16), f"{prefix}.transformer.shared_head.norm.weight")
            logits.append(self._linear(y, f"{prefix}.transformer.shared_head.output.weight"))
        return logits
