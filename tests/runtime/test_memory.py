"""Engines take no memory for weights: three of them on one model larger than all their states."""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from graphs.checkpoint import Checkpoint
from graphs.plan import EnginePlan
from graphs.synthetic import SyntheticDims
from graphs.synthetic_weights import write_synthetic
from runtime.engine import Engine
from runtime.exchange import Turn
from runtime.request import SamplingParams
from tests.artifacts import eager_artifact, load

# Most of it in experts, as in the release.
DIMS = SyntheticDims(
    hidden=512,
    layers=8,
    heads=4,
    head_dim=24,
    window=64,
    dense_dim=256,
    experts=64,
    chosen=2,
    expert_dim=512,
    vocab=512,
    proxy_dim=64,
    index_heads=2,
    index_rope=8,
    top_regions=8,
)


def resident() -> int:
    """Bytes of this process in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


def test_three_engines_hold_the_weights_once(tmp_path: Path) -> None:
    programs = load(eager_artifact())
    write_synthetic(tmp_path / "c", DIMS)
    checkpoint = Checkpoint.open(tmp_path / "c")
    weights = checkpoint.load()
    tensors = [leaf for leaf in tree_leaves(weights) if isinstance(leaf, Tensor)]
    size = sum(tensor.nbytes for tensor in tensors)
    for tensor in tensors:  # a mapped page counts when it was read
        tensor.contiguous().view(torch.uint8).sum()
    before, engines = resident(), []
    for _ in range(3):
        made = Engine(
            *(checkpoint.config, weights),
            programs=programs,
            plan=EnginePlan(batches=(1,), prefill=(16,)),
            context=128,
        )
        made.prefill(list(range(40)), 0, SamplingParams())
        made.decode([Turn(slot=0, position=40, token=1, drafts=(2, 3, 4))])
        engines.append(made)
    assert size > 80e6
    assert resident() - before < 0.3 * size
    for made in engines:
        assert made.weights is weights
