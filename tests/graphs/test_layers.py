"""Each layer function against a plain reading of the architecture, and the faults it must not
have."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from graphs.config import LayerConfig, MoeConfig, RopeScaling
from graphs.formats import Bf16Experts
from graphs.layers.activation import swiglu
from graphs.layers.attention import attention
from graphs.layers.moe import moe_mlp, route
from graphs.layers.norm import layer_norm, rms_norm
from graphs.layers.rope import frequencies, inverse_frequencies, rotary_index
from graphs.ops.rotary import apply_rope, rope_table
from graphs.state import RING
from graphs.weights import DenseWeights, MoeWeights
from tests.graphs.whole import (
    BF16,
    FP32,
    fresh_state,
    golden,
    golden_model,
    layer_inputs,
    rotary_of,
    rows_at,
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rms_norm_is_zero_centred() -> None:
    x, weight = random(3, 64), random(64, seed=1)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 + weight)
    assert (rms_norm(x, weight, 1e-5, FP32) - exact).abs().max() < 1e-5
    assert torch.equal(rms_norm(x, weight, 1e-5, BF16), rms_norm(x, weight, 1e-5, FP32).to(BF16))


def test_layer_norm_uses_the_weight_as_it_is() -> None:
    x, weight, bias = random(3, 32), random(32, seed=1), random(32, seed=2)
    exact = torch.nn.functional.layer_norm(x.double(), (32,), weight.double(), bias.double(), 1e-5)
    assert (layer_norm(x, weight, bias, 1e-5, FP32) - exact).abs().max() < 1e-5


ROPE_CASES = [(1e4, 192, 192), (1e7, 64, 192), (1e7, 32, 256), (1e4, 48, 48), (1e7, 16, 48)]


@pytest.mark.parametrize("position", [0, 700, 2355, 100_000])
@pytest.mark.parametrize(("theta", "rotary", "width"), ROPE_CASES)
def test_rope_against_float64(theta: float, rotary: int, width: int, position: int) -> None:
    """Fault E8: the exponent uses the rotary width, not the head's; each layer kind its own
    base."""
    x = random(1, 2, width)
    table = rope_table(torch.tensor([position]), inverse_frequencies(theta, rotary, None), FP32)
    found, half = apply_rope(x, *table)[0], rotary // 2
    for i in range(half):
        angle = position * theta ** (-2 * i / rotary)
        c, s = math.cos(angle), math.sin(angle)
        first, second = x[0, :, i].double(), x[0, :, i + half].double()
        assert (found[:, i] - (first * c - second * s)).abs().max() < 0.05
        assert (found[:, i + half] - (second * c + first * s)).abs().max() < 0.05
    assert torch.equal(found[:, rotary:], x[0, :, rotary:])


def test_rope_tables_are_rounded_once_from_float32_angles() -> None:
    inv = inverse_frequencies(1e4, 48, None)
    cos, sin = rope_table(torch.tensor([2**20 - 1]), inv, BF16)
    angle = (2**20 - 1) * inv
    assert torch.equal(cos[0], angle.cos().to(BF16))
    assert torch.equal(sin[0], angle.sin().to(BF16))
    wrong = ((2**20 - 1) * inv.to(BF16).float()).cos().to(BF16)
    assert not torch.equal(cos[0], wrong)


def test_llama3_rule_by_wavelength() -> None:
    rule = RopeScaling(
        factor=2.0, original_max_positions=270336, low_freq_factor=1.0, high_freq_factor=32.0
    )
    plain, scaled = (inverse_frequencies(5e6, 64, r) for r in (None, rule))
    ratios = []
    for one, other in zip(plain.tolist(), scaled.tolist(), strict=True):
        wavelength = 2 * math.pi / one
        if wavelength < 270336 / 32:
            expected = one
        elif wavelength > 270336:
            expected = one / 2
        else:
            smooth = (270336 / wavelength - 1) / 31
            expected = (1 - smooth) * one / 2 + smooth * one
        assert other == pytest.approx(expected, rel=1e-5)
        ratios.append(round(other / one, 3))
    assert ratios[0] == 1
    assert ratios[-1] == 0.5
    assert any(0.5 < ratio < 1 for ratio in ratios)


RULE = RopeScaling(
    factor=2.0, original_max_positions=512, low_freq_factor=1.0, high_freq_factor=32.0
)


@pytest.mark.parametrize(
    "change", [{"rope_theta": 777.0}, {"rotary_dim": 4}, {"rope_scaling": RULE}], ids=str
)
@pytest.mark.parametrize("kind", ["layers", "mtp_layers"])
def test_layers_that_differ_in_rope_share_no_table(kind: str, change: dict[str, Any]) -> None:
    """Fault E8: not even those of one kind of attention."""
    config = golden_model().config
    *before, last = getattr(config, kind)
    other = dataclasses.replace(last, **change)
    changed = dataclasses.replace(config, **{kind: (*before, other)})
    kinds = frequencies(changed, None)
    for layer in (*changed.layers, *changed.mtp_layers):
        wanted = inverse_frequencies(layer.rope_theta, layer.rotary_dim, layer.rope_scaling)
        found = kinds[rotary_index(changed, layer)]
        assert torch.equal(found.attention, wanted)
        assert (found.indexer is not None) == (layer.attention == "full")
    assert len(kinds) == 1 + len(frequencies(config, None))


def test_llama3_factor_one_is_the_identity() -> None:
    rule = RopeScaling(
        factor=1.0, original_max_positions=2**20, low_freq_factor=1.0, high_freq_factor=32.0
    )
    assert torch.equal(inverse_frequencies(1e7, 64, rule), inverse_frequencies(1e7, 64, None))


def test_swiglu_clamps_after_silu_and_the_gate_only_from_above() -> None:
    """Fault B10, at activations well beyond the limit."""
    gate, up = torch.tensor([20.0, -20.0, 20.0, 6.0]), torch.tensor([-30.0, 30.0, 2.0, 30.0])
    silu = gate.double() / (1 + torch.exp(-gate.double()))
    expected = torch.tensor([7.0 * -7.0, float(silu[1]) * 7.0, 14.0, float(silu[3]) * 7.0])
    assert swiglu(gate, up, 7.0).tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert swiglu(gate, up, None)[0] == pytest.approx(float(silu[0]) * -30.0)


CHOICE = MoeConfig(experts=6, topk=3, expert_dim=4, shared_dim=4, routed_scale=3.0)


def moe_weights(router: Tensor, bias: Tensor) -> MoeWeights:
    hidden = router.shape[1]
    experts = [Bf16Experts(weight=random(6, 4, hidden, seed=s).to(BF16)) for s in (1, 2)]
    down = Bf16Experts(weight=random(6, hidden, 4, seed=3).to(BF16))
    shared = DenseWeights(
        gate=random(4, hidden, seed=4), up=random(4, hidden, seed=5), down=random(hidden, 4, seed=6)
    )
    return MoeWeights(
        router=router,
        router_bias=bias,
        gate=experts[0],
        up=experts[1],
        down=down,
        shared=shared,
    )


def test_router_bias_chooses_and_does_not_weigh() -> None:
    router, bias = random(6, 8), torch.tensor([0.0, 5.0, 0.0, 0.0, 5.0, 0.0])
    h = random(10, 8, seed=7)
    ids, weights = route(h, moe_weights(router, bias), CHOICE)
    assert all({1, 4} <= set(row) for row in ids.tolist())
    p = torch.sigmoid(h @ router.T).gather(1, ids)
    assert (weights - 3 * p / p.sum(-1, keepdim=True)).abs().max() < 1e-5
    assert weights.sum(-1).tolist() == pytest.approx([3.0] * 10)


def test_router_ties_go_to_the_lower_expert() -> None:
    ids, _ = route(random(4, 8), moe_weights(torch.zeros(6, 8), torch.zeros(6)), CHOICE)
    assert ids.tolist() == [[0, 1, 2]] * 4


def test_padding_rows_choose_no_expert() -> None:
    """Fault D4: a padding row's routed part is nothing; the other rows do not notice it."""
    weights = moe_weights(random(6, 8), torch.zeros(6))
    h, limits = random(3, 8), (7.0, 7.0)
    every = moe_mlp(h, torch.tensor([True] * 3), weights, CHOICE, limits)
    some = moe_mlp(h, torch.tensor([True, False, True]), weights, CHOICE, limits)
    assert torch.equal(some[[0, 2]], every[[0, 2]])
    assert not torch.equal(some[1], every[1])


def changed_attention(position: int, layer: LayerConfig, touched: int) -> bool:
    """Whether the residual of `position` after `layer` depends on the key at `touched`."""
    model, ids = golden_model(), golden()["prompt_60"].long()[: position + 1]
    results = []
    for poke in (0.0, 3.0):
        state = fresh_state(model)
        inputs = list(layer_inputs(model, ids[:position], state))
        del inputs
        state.layers[layer.index][1, :, touched // 8, 1, touched % 8] += poke
        *_, last = layer_inputs(model, ids[position:], state, start=position)
        results.append(last)
    return not torch.equal(*results)


def test_the_window_is_inclusive_of_the_query_itself() -> None:
    """Fault E7: window 16 sees 16 keys, self included: distance 15 is the first key, 16 is not
    seen."""
    layer = golden_model().config.layers[0]
    assert layer.window == 16
    assert changed_attention(40, layer, 40 - 15)
    assert not changed_attention(40, layer, 40 - 16)


def test_mtp_layers_have_the_window_too() -> None:
    """Fault E6, on the chain's own layer."""
    model = golden_model()
    layer = model.config.mtp_layers[0]
    assert layer.window == 16
    weights = model.weights.mtp[0].layer.attention
    h = random(1, 64)
    found = []
    for touched in (None, 25, 24):
        state = fresh_state(model)
        pool = state.layers[layer.index]
        pool[1] = random(2, 8, 2, 8, 24, seed=3)
        if touched is not None:
            pool[1, :, touched // 8, 1, touched % 8] += 3.0
        rows = rows_at(40, 1)
        rotary = rotary_of(model.config, layer, rows, FP32)
        args = (weights, pool, None, state.sliding_table, model.config, layer)
        found.append(attention(h, rows, rotary, *args))
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_ring_is_long_enough_for_three_drafts() -> None:
    assert max(8, 7 + 3) <= RING
    assert RING % 8 == 0
