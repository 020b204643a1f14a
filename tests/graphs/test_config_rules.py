"""Rules of the config that are more than spelling: clamp limits, rope, which layers have experts.

Architecture 1.2 (index rule of the limits, layer types that are scaled).
"""

from typing import Any

import pytest

from graphs.config import ModelConfig, RopeScaling
from tests.graphs.configs import (
    DEPTH,
    FULL,
    MTP,
    SLIDING,
    changed,
    edited,
    parse,
    relative,
    release,
)

LONG = DEPTH + MTP
LIMITS = ("swiglu_limits", "swiglu_limits_shared")


def limits(model: ModelConfig, key: str) -> list[float | None]:
    name = {"swiglu_limits": "routed_limit", "swiglu_limits_shared": "shared_limit"}[key]
    return [getattr(layer, name) for layer in (*model.layers, *model.mtp_layers)]


@pytest.mark.parametrize("key", LIMITS)
@pytest.mark.parametrize("length", [DEPTH, DEPTH + 1, DEPTH + 2, LONG])
def test_a_layer_past_the_end_of_the_limits_is_not_clamped(key: str, length: int) -> None:
    model = changed(**{key: [7.0] * length})
    assert limits(model, key) == [7.0] * length + [None] * (LONG - length)


@pytest.mark.parametrize("key", LIMITS)
@pytest.mark.parametrize("value", [None, []])
def test_no_limits_clamp_nothing(key: str, value: Any) -> None:
    assert limits(changed(**{key: value}), key) == [None] * LONG
    assert limits(parse(edited(lambda text: text.pop(key))), key) == [None] * LONG


@pytest.mark.parametrize("key", LIMITS)
def test_zero_and_null_limits_clamp_nothing_and_others_stay_in_their_layer(key: str) -> None:
    model = changed(**{key: [0, None, 0.0, 5.5] + [7.0] * (LONG - 5) + [16]})
    assert limits(model, key) == [None, None, None, 5.5] + [7.0] * (LONG - 5) + [16.0]


def test_routed_and_shared_limits_are_not_mixed_up() -> None:
    model = changed(swiglu_limits=[3.0] * LONG, swiglu_limits_shared=[4.0] * LONG)
    assert {(x.routed_limit, x.shared_limit) for x in model.layers} == {(3.0, 4.0)}


@pytest.mark.parametrize("factor", [0.333, 1 / 3, 0.33333333])
def test_the_rotary_width_is_rounded(factor: float) -> None:
    model = changed(partial_rotary_factors=factor)
    assert {layer.rotary_dim for layer in model.layers} == {64}


def test_a_scalar_theta_and_factor_hold_for_all_layers() -> None:
    model = changed(rope_theta=10000, partial_rotary_factors=0.5)
    layers = (*model.layers, *model.mtp_layers)
    assert {(layer.rope_theta, layer.rotary_dim) for layer in layers} == {(1e4, 96)}


def test_without_factors_everything_rotates() -> None:
    model = changed(partial_rotary_factors=None)
    assert {layer.rotary_dim for layer in model.layers} == {192}


def test_short_theta_lists_give_the_mtp_layers_that_of_a_sliding_layer() -> None:
    def change(text: dict[str, Any]) -> None:
        text["rope_theta"] = text["rope_theta"][:45]

    model = parse(edited(change, relative))  # its layer 0 is full, with another theta
    assert {layer.rope_theta for layer in model.mtp_layers} == {1e4}


SCALING = {
    "rope_type": "llama3",
    "factor": 2.0,
    "original_max_position_embeddings": 270336,
    "low_freq_factor": 1,
    "high_freq_factor": 32.0,
}


@pytest.mark.parametrize(
    ("types", "scaled"),
    [
        ([FULL], {"full"}),
        ([SLIDING], {"sliding"}),
        ([FULL, SLIDING], {"full", "sliding"}),
        ([], {"full", "sliding"}),
        (None, {"full", "sliding"}),
    ],
)
def test_scaling_is_for_the_layer_types_that_are_named(types: Any, scaled: set[str]) -> None:
    model = changed(rope_scaling=SCALING, yarn_only_types=types)
    layers = (*model.layers, *model.mtp_layers)
    assert {layer.attention for layer in layers if layer.rope_scaling} == scaled
    rule = RopeScaling(
        factor=2.0,
        original_max_positions=270336,
        low_freq_factor=1.0,
        high_freq_factor=32.0,
    )
    assert {layer.rope_scaling for layer in layers} - {None} == {rule}


@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {"type": "default"}, {}])
def test_no_scaling(scaling: Any) -> None:
    assert {layer.rope_scaling for layer in changed(rope_scaling=scaling).layers} == {None}


def test_the_older_name_of_the_rope_type() -> None:
    scaling = {key: value for key, value in SCALING.items() if key != "rope_type"}
    older = changed(rope_scaling={**scaling, "type": "llama3"})
    assert older == changed(rope_scaling=SCALING)


def test_without_any_list_the_moe_layers_start_at_one() -> None:
    model = changed(moe_layers_enum=None, moe_layer_list=None)
    assert [x.index for x in model.layers if x.feed_forward == "dense"] == [0]
    assert {x.feed_forward for x in model.mtp_layers} == {"dense"}


@pytest.mark.parametrize(
    "keys", [{"use_moe": False}, {"moe_layers_enum": "", "moe_layer_list": []}]
)
def test_a_model_without_experts(keys: dict[str, Any]) -> None:
    model = changed(**keys)
    assert model.moe is None
    assert {x.feed_forward for x in model.layers} == {"dense"}


def test_a_model_without_mtp_layers() -> None:
    def change(text: dict[str, Any]) -> None:
        del text["num_nextn_predict_layers"]
        for key in ("layer_types", "rope_theta", "partial_rotary_factors", *LIMITS):
            text[key] = text[key][:DEPTH]

    model = parse(edited(change))
    assert (model.layers, model.mtp_layers) == (parse(release()).layers, ())


def test_the_rounded_residual_is_the_default_of_the_relatives() -> None:
    assert not parse(edited(lambda text: text.pop("fp32_residual_connection"))).fp32_residual
