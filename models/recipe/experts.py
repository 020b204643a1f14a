"""The mixture of experts for training: router, dispatch, load, and NVFP4 rounding.

Keeps true: the same mathematics as inference (architecture 3.8, 3.9). Two dispatches compute it:
sorted rows and a loop over experts where launches are cheap (CPU), all experts on all rows where
fixed shapes matter more than work (CUDA graphs).

Legend: M rows (batch x sequence), H hidden, E experts, K chosen, F expert feed-forward.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.layers.activation import swiglu

BLOCK = 16
E2M1_MAX, E4M3_MAX = 6.0, 448.0
# the CPU library compiles a kernel for every new row count: few counts, few compilations
ROWS_STEP = 128


def route(
    h_MH: Tensor, gate_EH: Tensor, bias_E: Tensor, chosen: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Ids [M, K] and float32 weights [M, K]; the bias only takes part in the choice."""
    p_ME = torch.sigmoid(F.linear(h_MH.float(), gate_EH.float()))
    order_ME = torch.sort(p_ME.detach() + bias_E, dim=-1, descending=True, stable=True).indices
    ids_MK = order_ME[:, :chosen]
    p_MK = p_ME.gather(1, ids_MK)
    return ids_MK, p_MK / p_MK.sum(-1, keepdim=True) * scale


def expert_load(ids_MK: Tensor, experts: int) -> Tensor:
    """How many rows chose each expert, float32 [E]."""
    return (ids_MK.flatten()[:, None] == torch.arange(experts, device=ids_MK.device)).sum(0).float()


def _by_sorted_loop(
    h_MH: Tensor, ids_MK: Tensor, weights_MK: Tensor, w: tuple[Tensor, Tensor, Tensor], limit: float
) -> Tensor:
    gate_EFH, up_EFH, down_EHF = w
    chosen = ids_MK.shape[1]
    order = torch.sort(ids_MK.flatten(), stable=True).indices
    counts = torch.bincount(ids_MK.flatten(), minlength=gate_EFH.shape[0]).tolist()
    rows = order // chosen
    outs = []
    for expert, x in enumerate(h_MH[rows].split(counts)):
        x = F.pad(x, (0, 0, 0, -len(x) % ROWS_STEP))
        act = swiglu(F.linear(x, gate_EFH[expert]), F.linear(x, up_EFH[expert]), limit)
        outs.append(F.linear(act, down_EHF[expert])[: counts[expert]])
    weighted = torch.cat(outs).float() * weights_MK.flatten()[order, None]
    return torch.zeros_like(h_MH, dtype=torch.float32).index_add(0, rows, weighted)


def _by_all_experts(
    h_MH: Tensor, ids_MK: Tensor, weights_MK: Tensor, w: tuple[Tensor, Tensor, Tensor], limit: float
) -> Tensor:
    gate_EFH, up_EFH, down_EHF = w
    h_EMH = h_MH.expand(gate_EFH.shape[0], *h_MH.shape)
    act_EMF = swiglu(h_EMH @ gate_EFH.mT, h_EMH @ up_EFH.mT, limit)
    out_EMH = act_EMF @ down_EHF.mT
    weights_ME = torch.zeros(h_MH.shape[0], gate_EFH.shape[0], device=h_MH.device)
    weights_ME = weights_ME.scatter(1, ids_MK, weights_MK)
    return (out_EMH.float() * weights_ME.T[..., None]).sum(0)


def routed_experts(
    h_MH: Tensor, ids_MK: Tensor, weights_MK: Tensor, w: tuple[Tensor, Tensor, Tensor], limit: float
) -> Tensor:
    """Weighted sum of the chosen experts, [M, H] in h's dtype; w = gate, up [E, F, H], down."""
    dispatch = _by_all_experts if h_MH.is_cuda else _by_sorted_loop
    return dispatch(h_MH, ids_MK, weights_MK, w, limit).to(h_MH.dtype)


def nvfp4_values(w_EOI: Tensor) -> Tensor:
    """The values that NVFP4 keeps of float32 experts [E, O, I], as float32.

    The same numbers as graphs.formats.Nvfp4Experts, in plain arithmetic that a CUDA graph can hold.
    """
    blocks = w_EOI.unflatten(-1, (-1, BLOCK))
    amax = blocks.abs().amax(-1, keepdim=True)
    scale_2 = (amax.amax((1, 2, 3), keepdim=True) / (E2M1_MAX * E4M3_MAX)).clamp_min(1e-30)
    scale = (amax / E2M1_MAX / scale_2).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn).float()
    step = scale * scale_2
    x = (blocks / step).masked_fill(step == 0, 0.0)
    size = x.abs().clamp(max=E2M1_MAX)
    fine, middle, coarse = (size * 2).round() / 2, size.round(), (size / 2).round() * 2
    size = torch.where(size < 2, fine, torch.where(size < 4, middle, coarse))
    return (torch.copysign(size, x) * step).flatten(-2)


def rounded_to_nvfp4(w_EOI: Tensor) -> Tensor:
    """`nvfp4_values` in the forward pass, the identity in the backward pass."""
    return w_EOI + (nvfp4_values(w_EOI.detach()) - w_EOI).detach()
