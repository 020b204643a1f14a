"""A row's result has the same bits alone, in a verify window and in a prefill chunk.

The promise that speculation and chunking change no token rests on this, function by function. The
negative controls show that the library's own operations break it, so the tests can fail.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.layers.activation import sigmoid, swiglu
from graphs.layers.linear import linear
from graphs.layers.norm import layer_norm, rms_norm
from graphs.layers.rope import inverse_frequencies
from graphs.ops.attention import attend
from graphs.ops.rotary import apply_rope, rope_table
from graphs.ops.routed_experts import routed_experts
from graphs.ops.summaries import summarise
from graphs.weights import MoeWeights
from tests.graphs.whole import BF16, FP32, golden_model

COUNTS = (1, 2, 3, 4, 5, 7, 16, 17, 33)
STARTS = (0, 1, 3, 17)
ROWS = 64


def unequal(run: Callable[..., Tensor], *inputs: Tensor) -> list[tuple[int, int]]:
    """(start, count) of every slice of rows whose result differs from the same rows of all."""
    whole = run(*inputs)
    found = []
    for count in COUNTS:
        for start in STARTS:
            rows = slice(start, start + count)
            if not torch.equal(run(*(x[rows].clone() for x in inputs)), whole[rows]):
                found.append((start, count))
    return found


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("shape", [(64, 384), (96, 64), (192, 3072), (512, 192), (64, 3), (48, 5)])
def test_linear(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    width, out = shape
    weight = random(out, width, seed=1).to(dtype)
    assert not unequal(lambda x: linear(x, weight), random(ROWS, width).to(dtype))


def test_the_library_product_alone_is_not_row_invariant() -> None:
    weight = random(384, 64, seed=1)
    assert unequal(lambda x: F.linear(x, weight), random(ROWS, 64))


@pytest.mark.parametrize("width", [1, 3, 5, 8, 33, 96])
@pytest.mark.parametrize(
    "run",
    [
        sigmoid,
        lambda x: swiglu(x, x.flip(1), 7.0),
        lambda x: rms_norm(x, torch.ones(x.shape[1]), 1e-5, FP32),
        lambda x: layer_norm(x, torch.ones(x.shape[1]), torch.ones(x.shape[1]), 1e-5, BF16),
        lambda x: x.softmax(-1),
    ],
    ids=["sigmoid", "swiglu", "rms_norm", "layer_norm", "softmax"],
)
def test_pointwise_and_norms(run: Callable[[Tensor], Tensor], width: int) -> None:
    assert not unequal(run, random(ROWS, width) * 3)


def test_the_library_sigmoid_alone_is_not_row_invariant() -> None:
    assert unequal(torch.sigmoid, random(ROWS, 7) * 3)


@pytest.mark.parametrize("keys", [16, 40, 64, 136])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_attend(keys: int, dtype: torch.dtype) -> None:
    q, k, v = random(ROWS, 8, 24), random(ROWS, 2, keys, 24, seed=1), random(ROWS, 2, keys, 24)
    seen = random(ROWS, 2, keys, seed=2) > -0.5
    inputs = (x.to(dtype) for x in (q, k, v))
    assert not unequal(attend, *inputs, seen)


def test_rope() -> None:
    inv = inverse_frequencies(1e4, 8, None)
    position = torch.arange(ROWS) * 1009
    run = lambda x, p: apply_rope(x, *rope_table(p, inv, FP32))  # noqa: E731
    assert not unequal(run, random(ROWS, 2, 24), position)


def test_summaries() -> None:
    run = lambda k, z: summarise(k, z).float()  # noqa: E731
    assert not unequal(run, random(ROWS, 8, 32).to(BF16), random(ROWS, 8, 32, seed=1).to(BF16))


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("kind", ["bf16", "fp8", "nvfp4-packed"])
def test_routed_experts(dtype: torch.dtype, kind: str) -> None:
    moe = golden_model(kind).weights.layers[2].feed_forward
    assert isinstance(moe, MoeWeights)
    ids = random(ROWS, 16, seed=3).argsort(-1)[:, :4]
    weights = random(ROWS, 4, seed=4).softmax(-1)
    run = lambda h, i, w: routed_experts(h, i, w, moe, 7.0)  # noqa: E731
    assert not unequal(run, random(ROWS, 64).to(dtype), ids, weights)
