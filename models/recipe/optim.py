"""Muon for the hidden matrices, AdamW for the rest, in place and free of host reads.

Knows tensors by release name; does not know losses. Keeps true: a step is a fixed sequence of
tensor operations on fixed memory (learning rates are tensors), so that a CUDA graph can hold it,
and `state` is everything a bit-equal resume needs.
"""

# torch._foreach_* is what the library's own optimizers use; it has no public spelling
# pyright: reportPrivateImportUsage=false

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

MOMENTUM = 0.95
ADAM_BETAS = (0.9, 0.95)
ADAM_EPS = 1e-8
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def is_hidden_matrix(name: str) -> bool:
    """True for the matrices between hidden activations, experts' included: Muon's part."""
    projection = name.endswith("_proj.weight") and not name.endswith("g_proj.weight")
    indexer = name.endswith(tuple(f"sparse_indexer_{part}.weight" for part in "qkz"))
    return projection or indexer


def orthogonalise(g_NRC: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrix of each of N, by Newton-Schulz in bf16."""
    a, b, c = NEWTON_SCHULZ
    tall = g_NRC.shape[1] > g_NRC.shape[2]
    x = (g_NRC.mT if tall else g_NRC).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Optimizer:
    """Updates `parameters` in place. Rates are read from `rates`, float32 [2]: Muon, Adam."""

    def __init__(
        self, parameters: Mapping[str, Tensor], *, weight_decay: float, embedding_factor: float
    ) -> None:
        self.parameters = dict(parameters)
        self.weight_decay = weight_decay
        self.embedding_factor = embedding_factor
        device = next(iter(self.parameters.values())).device
        self.rates = torch.zeros(2, device=device)
        self.state: dict[str, Tensor] = {"steps": torch.zeros((), device=device)}
        self.muon: dict[tuple[int, ...], list[str]] = {}
        self.adam: list[str] = []
        for name, p in self.parameters.items():
            self.state[f"first {name}"] = torch.zeros_like(p, requires_grad=False)
            if is_hidden_matrix(name):
                self.muon.setdefault(tuple(p.shape[-2:]), []).append(name)
            else:
                self.adam.append(name)
                self.state[f"second {name}"] = torch.zeros_like(p, requires_grad=False)

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """One update from `gradients`, which are consumed."""
        self.state["steps"].add_(1)
        for shape, names in self.muon.items():
            self._muon(shape, names, gradients)
        self._adam(gradients)

    def _muon(
        self, shape: tuple[int, ...], names: Sequence[str], gradients: Mapping[str, Tensor]
    ) -> None:
        params = [self.parameters[name] for name in names]
        grads = [gradients[name] for name in names]
        moments = [self.state[f"first {name}"] for name in names]
        torch._foreach_lerp_(moments, grads, 1 - MOMENTUM)
        looked_ahead = torch._foreach_lerp(grads, moments, MOMENTUM)
        counts = [p.numel() // (shape[0] * shape[1]) for p in params]
        stacked = torch.cat([g.reshape(-1, *shape) for g in looked_ahead])
        factor = self.rates[0] * max(1.0, shape[0] / shape[1]) ** 0.5
        updates = (orthogonalise(stacked).float() * factor).split(counts)
        torch._foreach_mul_(params, 1 - self.rates[0] * self.weight_decay)
        shaped = [u.view(p.shape) for u, p in zip(updates, params, strict=True)]
        torch._foreach_sub_(params, shaped)

    def _adam(self, gradients: Mapping[str, Tensor]) -> None:
        params = [self.parameters[name] for name in self.adam]
        grads = [gradients[name] for name in self.adam]
        first = [self.state[f"first {name}"] for name in self.adam]
        second = [self.state[f"second {name}"] for name in self.adam]
        torch._foreach_lerp_(first, grads, 1 - ADAM_BETAS[0])
        torch._foreach_mul_(second, ADAM_BETAS[1])
        torch._foreach_addcmul_(second, grads, grads, 1 - ADAM_BETAS[1])
        corrections = [1 - beta ** self.state["steps"] for beta in ADAM_BETAS]
        for name, p, m, v in zip(self.adam, params, first, second, strict=True):
            rate = self.rates[1] * (self.embedding_factor if "embed_tokens" in name else 1.0)
            scale = (v / corrections[1]).sqrt_().add_(ADAM_EPS)
            p.sub_(m / scale * (rate / corrections[0]))
