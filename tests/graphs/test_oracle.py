"""The dense body against an independent program: transformers' step3p7 in float32 (architecture 9).

Compared are logits of every position, from the same files. The MTP chain is not compared: that
program chains other states. Keeps true: each fault that such runtimes had (B11) moves the logits by
far more than the tolerance, so that this oracle would see it.
"""

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.step3p7 import modeling_step3p7

from graphs.checkpoint import Checkpoint
from graphs.config import LayerConfig, ModelConfig
from graphs.config_json import parse_config
from graphs.layers.rope import inverse_frequencies
from graphs.ops.rotary import apply_rope, rope_table
from graphs.weights import MoeWeights
from tests.graphs import configs, relative_checkpoint
from tests.graphs.variants import copy, edit_config
from tests.graphs.whole import Model, golden, golden_model, logits, residual

step3p7: Any = modeling_step3p7  # its annotations say less than it accepts
TOLERANCE = 2e-4
VISIBLE = 1000 * TOLERANCE
LENGTH = 48  # six windows
DENSE_UNTIL = 40  # golden: up to here every region fits topk


def oracle_logits(folder: Path, ids: Tensor, ignored: str) -> Tensor:
    """[T, V] of the other program, which has to find all it needs and leave only `ignored`."""
    model, report = step3p7.Step3p7ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    vision = ("model.vision_model.", "model.multi_modal_projector.")
    assert not [name for name in report["missing_keys"] if not name.startswith(vision)]
    assert not [name for name in report["unexpected_keys"] if ignored not in name]
    with torch.no_grad():
        return model.eval()(input_ids=ids[None], use_cache=False).logits[0]


@pytest.fixture(scope="module")
def relative(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Tensor, Tensor]:
    """(model, prompt, the oracle's logits) of the tiny dense relative."""
    folder = relative_checkpoint.write(tmp_path_factory.mktemp("relative"))
    checkpoint = Checkpoint.open(folder)
    model = Model(config=checkpoint.config, weights=checkpoint.load())
    vocab = model.config.vocab_size
    ids = torch.randint(vocab, (LENGTH,), generator=torch.Generator().manual_seed(1))
    return model, ids, oracle_logits(folder, ids, "nothing")


def worst(model: Model, ids: Tensor, expected: Tensor) -> float:
    return float((logits(model, residual(model, ids)) - expected).abs().max())


def test_the_relative_has_every_kind_of_layer(relative: tuple[Model, Tensor, Tensor]) -> None:
    layers = relative[0].config.layers
    kinds = {(x.attention, x.feed_forward, x.heads, x.rotary_dim) for x in layers}
    assert kinds == {
        ("full", "dense", 4, 8),
        ("sliding", "dense", 6, 16),
        ("full", "moe", 4, 8),
        ("sliding", "moe", 6, 16),
    }
    assert LENGTH > 5 * relative_checkpoint.WINDOW


def test_logits_of_the_relative(relative: tuple[Model, Tensor, Tensor]) -> None:
    model, ids, expected = relative
    assert worst(model, ids, expected) <= TOLERANCE
    assert expected.std() > 0.5  # there is something to compare


def test_logits_of_the_relative_in_chunks(relative: tuple[Model, Tensor, Tensor]) -> None:
    model, ids, expected = relative
    found = logits(model, residual(model, ids, chunk=7))
    assert (found - expected).abs().max() <= TOLERANCE


def layers(change: Callable[[LayerConfig], dict[str, Any]]) -> Callable[[Model], Model]:
    """The model with fields of its layers changed."""

    def changed(model: Model) -> Model:
        new = tuple(dataclasses.replace(x, **change(x)) for x in model.config.layers)
        return dataclasses.replace(model, config=dataclasses.replace(model.config, layers=new))

    return changed


def sliding(change: Callable[[LayerConfig], dict[str, Any]]) -> Callable[[Model], Model]:
    return layers(lambda layer: change(layer) if layer.window else {})


def full(change: Callable[[LayerConfig], dict[str, Any]]) -> Callable[[Model], Model]:
    return layers(lambda layer: {} if layer.window else change(layer))


def scaling_everywhere(model: Model) -> Model:
    rule = model.config.layers[0].rope_scaling
    assert rule is not None
    return layers(lambda _: {"rope_scaling": rule})(model)


def quantised_router(model: Model) -> Model:
    """The router's weights through e4m3, as if they had been quantised with the experts."""

    def rounded(layer: Any) -> Any:
        if not isinstance(layer.feed_forward, MoeWeights):
            return layer
        router = layer.feed_forward.router.to(torch.float8_e4m3fn).float()
        moe = dataclasses.replace(layer.feed_forward, router=router)
        return dataclasses.replace(layer, feed_forward=moe)

    new = tuple(rounded(layer) for layer in model.weights.layers)
    return dataclasses.replace(model, weights=dataclasses.replace(model.weights, layers=new))


def with_moe(**keys: Any) -> Callable[[Model], Model]:
    def changed(model: Model) -> Model:
        assert model.config.moe is not None
        moe = dataclasses.replace(model.config.moe, **keys)
        return dataclasses.replace(model, config=dataclasses.replace(model.config, moe=moe))

    return changed


def window(by: int) -> Callable[[Model], Model]:
    return sliding(lambda layer: {"window": (layer.window or 0) + by})


FAULTS: dict[str, Callable[[Model], Model]] = {
    "window one too long": window(1),
    "window one too short": window(-1),
    "no sliding mask": window(LENGTH),
    "no clamp of the routed experts": layers(lambda _: {"routed_limit": None}),
    "no clamp of the dense and shared MLP": layers(lambda _: {"shared_limit": None}),
    "every layer clamped": layers(lambda _: {"routed_limit": 1.0, "shared_limit": 1.5}),
    "rope scaling on all layers": scaling_everywhere,
    "rope scaling on none": layers(lambda _: {"rope_scaling": None}),
    "sliding layers with the theta of full ones": sliding(lambda _: {"rope_theta": 5e6}),
    "full layers with the theta of sliding ones": full(lambda _: {"rope_theta": 1e4}),
    "full layers rotated whole": full(lambda layer: {"rotary_dim": layer.head_dim}),
    "router quantised": quantised_router,
    "routed experts not scaled": with_moe(routed_scale=1.0),
    "one expert less": with_moe(topk=2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_oracle_sees_each_fault(fault: str, relative: tuple[Model, Tensor, Tensor]) -> None:
    model, ids, expected = relative
    assert worst(FAULTS[fault](model), ids, expected) > VISIBLE


@pytest.fixture(scope="module")
def dense_golden(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    """The oracle's logits of the golden prompt of 60; it knows no sparse attention and no MTP."""
    folder = copy(tmp_path_factory.mktemp("golden") / "bf16", "bf16")
    edit_config(folder, lambda config: config.update(model_type="step3p7"))
    return oracle_logits(folder, golden()["prompt_60"].long(), ".self_attn.")


def test_golden_logits_while_every_region_is_chosen(dense_golden: Tensor) -> None:
    found = logits(golden_model(), residual(golden_model(), golden()["prompt_60"].long()))
    different = (found - dense_golden).abs().amax(-1)
    assert different[:DENSE_UNTIL].max() <= TOLERANCE
    # Behind it the selection matters, and the dense program no longer agrees.
    assert different[DENSE_UNTIL:].max() > VISIBLE


POSITIONS = (0, 1, 700, 2355, 100_000)


@cache
def rotary(name: str) -> tuple[Any, ModelConfig]:
    """(the oracle's rotary module, our config) of a full-size model."""
    config = {"release": configs.release, "relative": configs.relative}[name]()
    text = config.get("text_config", config)
    ours = parse_config(json.loads(json.dumps(config)))
    kept = {key: value for key, value in text.items() if key != "model_type"}
    return step3p7.Step3p7RotaryEmbedding(step3p7.Step3p7TextConfig(**kept)), ours


@pytest.mark.parametrize("kind", ["sliding", "full"])
@pytest.mark.parametrize("name", ["release", "relative"])
@pytest.mark.parametrize("position", POSITIONS)
def test_rotated_queries_of_the_full_size_models(name: str, kind: str, position: int) -> None:
    """E8: a wrong base or exponent is invisible at position 0 and drifts later."""
    module, config = rotary(name)
    layer = next(x for x in config.layers if x.attention == kind)
    q = torch.randn(1, layer.heads, layer.head_dim, generator=torch.Generator().manual_seed(0))
    at = torch.tensor([position])
    expected_cos, expected_sin = module(q, at[None], f"{kind}_attention")
    expected, _ = step3p7.apply_rotary_pos_emb(
        q[:, :, None], q[:, :, None], expected_cos, expected_sin
    )
    inv = inverse_frequencies(layer.rope_theta, layer.rotary_dim, layer.rope_scaling)
    found = apply_rope(q, *rope_table(at, inv, torch.float32))
    # The llama3 blend is computed in another order: one rounding of a frequency, times position.
    assert (found - expected[:, :, 0]).abs().max() <= 1e-6 + position * 2**-24
