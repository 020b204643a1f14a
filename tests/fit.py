"""Exact distributions of the sampler, and whether counts fit them.

The fit is Pearson's chi-square over cells that are large enough.

Draws in tests have fixed seeds: a p-value is a constant of the code under test, not a chance.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import chi2
from torch import Tensor

LEAST = 8.0  # expected count a cell needs; smaller cells are merged


def filtered(
    logits_V: Tensor,
    *,
    temperature: float = 1.0,
    top_k: float = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Tensor:
    """The distribution that temperature, min-p, top-k and top-p leave, float64 [V]."""
    p, order = torch.softmax(logits_V.double() / temperature, dim=0).sort(descending=True)
    p = torch.where(p >= min_p * p[0], p, 0)
    p[int(top_k) or len(p) :] = 0
    p /= p.sum()
    p = torch.where(p.cumsum(0) - p < top_p, p, 0)
    return torch.zeros_like(p).scatter(0, order, p / p.sum())


def p_value(counts: ArrayLike, probabilities: ArrayLike) -> float:
    """Probability of counts that fit worse. Something in a cell of probability 0 gives 0."""
    found = np.asarray(counts, dtype=float).ravel()
    p = np.asarray(probabilities, dtype=float).ravel()
    assert found.shape == p.shape
    assert abs(p.sum() - 1) < 1e-6
    if found[p == 0].any():
        return 0.0
    found, expected = _merge(found[p > 0], p[p > 0] * found.sum())
    return float(chi2.sf(((found - expected) ** 2 / expected).sum(), len(found) - 1))


def _merge(found: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join the rarest cells until each expects at least LEAST."""
    order = np.argsort(expected, kind="stable")
    found, expected = found[order], expected[order]
    rare = int((expected < LEAST).sum())
    if rare and expected[:rare].sum() < LEAST:
        rare += 1
    assert rare < len(expected), "too few draws for more than one cell"
    if rare:
        found = np.append(found[rare:], found[:rare].sum())
        expected = np.append(expected[rare:], expected[:rare].sum())
    return found, expected
