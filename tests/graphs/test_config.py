"""Every spelling of a config that uploads use is read as the same model (architecture 1).

Rules that are more than spelling are in test_config_rules.py, refusals in test_config_faults.py.
"""

import dataclasses
from collections.abc import Callable

import pytest

from graphs.config import LayerConfig, RopeScaling
from tests.graphs.configs import (
    DEPTH,
    FULL,
    MTP,
    SLIDING,
    Json,
    changed,
    edited,
    nested,
    parse,
    put,
    relative,
    release,
    renamed,
    without,
)

LONG = DEPTH + MTP


def test_the_release() -> None:
    model = parse(release())
    assert (len(model.layers), len(model.mtp_layers)) == (92, 3)
    assert model.full_layers == tuple(range(3, 92, 4))
    assert model.sliding_layers[-3:] == (92, 93, 94)
    moe = [layer.index for layer in model.layers if layer.feed_forward == "moe"]
    assert moe == list(range(3, 91))
    assert (model.hidden_dim, model.dense_dim, model.vocab_size) == (4096, 13824, 128896)
    assert (model.max_positions, model.rms_eps, model.fp32_residual) == (1048576, 1e-5, True)
    assert (model.bos_id, model.stop_ids, model.image_token_id) == (0, (1, 2), 128001)
    assert (model.quant, model.ssmax) == (None, False)


def test_a_layer_of_each_kind_of_the_release() -> None:
    model = parse(release())
    sliding = LayerConfig(
        index=0,
        attention="sliding",
        feed_forward="dense",
        heads=64,
        kv_heads=4,
        head_dim=192,
        window=512,
        rope_theta=1e4,
        rotary_dim=192,
        rope_scaling=None,
        routed_limit=7.0,
        shared_limit=7.0,
    )
    scaling = RopeScaling(
        factor=1.0,
        original_max_positions=1048576,
        low_freq_factor=1.0,
        high_freq_factor=32.0,
    )
    full = dataclasses.replace(
        sliding,
        index=3,
        attention="full",
        feed_forward="moe",
        window=None,
        rope_theta=1e7,
        rotary_dim=64,
        rope_scaling=scaling,
    )
    assert model.layers[0] == sliding
    assert model.layers[3] == full
    assert model.layers[4] == dataclasses.replace(sliding, index=4, feed_forward="moe")
    assert model.layers[91] == dataclasses.replace(full, index=91, feed_forward="dense")
    expected = tuple(dataclasses.replace(sliding, index=92 + depth) for depth in range(3))
    assert model.mtp_layers == expected


def test_the_sections_of_the_release() -> None:
    model = parse(release())
    assert model.moe is not None
    assert dataclasses.astuple(model.moe) == (352, 8, 1536, 1536, 3.0)
    assert model.sparse is not None
    assert dataclasses.astuple(model.sparse) == (256, 16, 4, 32, 512, 8)
    assert model.vision is not None
    assert dataclasses.astuple(model.vision) == (1536, 47, 16, 14, 728, 8960, False)


def test_the_dense_relative() -> None:
    model = parse(relative())
    assert (len(model.layers), len(model.mtp_layers), model.sparse) == (45, 3, None)
    assert model.moe is not None
    assert (model.moe.experts, model.moe.topk, model.moe.shared_dim) == (288, 8, 1280)
    heads = {layer.attention: (layer.heads, layer.kv_heads) for layer in model.layers}
    assert heads == {"full": (64, 8), "sliding": (96, 8)}
    assert {layer.heads for layer in model.mtp_layers} == {96}
    assert {layer.rotary_dim for layer in model.layers if layer.attention == "full"} == {64}
    clamped = {layer.index: (layer.routed_limit, layer.shared_limit) for layer in model.layers}
    assert {i: limits for i, limits in clamped.items() if any(limits)} == {
        43: (7.0, 16.0),
        44: (7.0, 16.0),
    }
    # One fault of such runtimes was to scale the rope of all layers, or of none.
    factors = {(x.attention, x.rope_scaling and x.rope_scaling.factor) for x in model.layers}
    assert factors == {("full", 2.0), ("sliding", None)}
    assert {layer.rope_scaling for layer in model.mtp_layers} == {None}
    assert (model.fp32_residual, model.stop_ids) == (False, (1, 2, 128007))


def test_a_relative_may_be_nested_and_step3p7() -> None:
    assert parse(nested(relative())) == parse(relative())


def test_the_heads_of_sliding_layers_may_have_a_key_of_their_own() -> None:
    change = put(attention_other_setting=None, num_sliding_attention_heads=96)
    assert parse(edited(change, relative)) == parse(relative())


def flat(config: Json) -> Json:
    """The text keys at top level, as in text-only uploads."""
    top = {k: v for k, v in config.items() if k not in ("text_config", "architectures")}
    return {**top, **config["text_config"], "model_type": "step5"}


def test_flat_and_nested_are_the_same() -> None:
    assert parse(flat(release())) == parse(release())


def test_without_vision_nothing_else_changes() -> None:
    config = release()
    del config["vision_config"], config["image_token_id"]
    expected = dataclasses.replace(parse(release()), vision=None, image_token_id=None)
    assert parse(config) == expected


@pytest.mark.parametrize(
    "name", ["step3p5v", "step5_vl", "step5", "step4", "step5_text", "step3p5", "step3p7"]
)
def test_model_types(name: str) -> None:
    config: Json = {**release(), "model_type": name}
    config["text_config"]["model_type"] = name
    assert parse(config) == parse(release())


def test_model_type_may_be_absent() -> None:
    config = release()
    del config["model_type"], config["text_config"]["model_type"]
    assert parse(config) == parse(release())


def cut(text: Json) -> None:
    """Per-layer lists end with the backbone, but for the limits, which have their own rule."""
    for key in ("layer_types", "rope_theta", "partial_rotary_factors"):
        text[key] = text[key][:DEPTH]


def with_mtp_list(text: Json) -> None:
    text["layer_types_with_mtp"] = text["layer_types"]
    text["layer_types"] = text["layer_types"][:DEPTH]


def only_mtp_list(text: Json) -> None:
    text["layer_types_with_mtp"] = text.pop("layer_types")


def moe_from(spelling: str) -> Callable[[Json], None]:
    def change(text: Json) -> None:
        kept = text.pop(spelling)
        text.pop("moe_layers_enum", None)
        text.pop("moe_layer_list", None)
        text[spelling] = kept

    return change


def moe_as_list_enum(text: Json) -> None:
    text["moe_layers_enum"] = text.pop("moe_layer_list")


def moe_as_types(length: int) -> Callable[[Json], None]:
    def change(text: Json) -> None:
        del text["moe_layer_list"], text["moe_layers_enum"]
        types = ["sparse" if 3 <= i < 91 else "dense" for i in range(length)]
        text["mlp_layer_types"] = types

    return change


def bare_sparse(text: Json) -> None:
    section = text["sparse_config"]
    text["sparse_config"] = {k.removeprefix("sparse_indexer_"): v for k, v in section.items()}


def index_tp_size(text: Json) -> None:
    text["sparse_config"]["index_tp_size"] = text["sparse_config"].pop("num_provider_groups")


def only_needed_sparse(text: Json) -> None:
    needed = ("proxy_dim", "num_heads", "rope_dim", "num_provider_groups", "topk", "region_block")
    section = text["sparse_config"]
    text["sparse_config"] = {
        key: value
        for key, value in section.items()
        if key.removeprefix("sparse_indexer_").startswith(needed)
    }


SAME: dict[str, Callable[[Json], object]] = {
    "lists of length L": cut,
    "layer_types_with_mtp": with_mtp_list,
    "only layer_types_with_mtp": only_mtp_list,
    "moe_layers_enum alone": moe_from("moe_layers_enum"),
    "moe_layer_list alone": moe_from("moe_layer_list"),
    "moe_layers_enum with blanks": put(moe_layers_enum=", ".join(map(str, range(3, 91))) + ","),
    "moe_layers_enum as a list": moe_as_list_enum,
    "mlp_layer_types of L": moe_as_types(DEPTH),
    "mlp_layer_types of L+MTP": moe_as_types(LONG),
    "num_mtp_layers": renamed("num_nextn_predict_layers", "num_mtp_layers"),
    "both MTP counts": renamed("num_nextn_predict_layers", "num_mtp_layers", keep=True),
    "share_expert_dims": renamed("share_expert_dim", "share_expert_dims"),
    "num_key_value_heads": renamed("num_attention_groups", "num_key_value_heads"),
    "n_routed_experts": renamed("moe_num_experts", "n_routed_experts"),
    "num_experts_per_tok alone": without("moe_top_k"),
    "moe_top_k alone": without("num_experts_per_tok"),
    "max_seq_len alone": without("max_position_embeddings"),
    "max_position_embeddings alone": without("max_seq_len"),
    "no attention_other_setting": without("attention_other_setting"),
    "num_sliding_attention_heads": put(
        num_sliding_attention_heads=64, attention_other_setting=None
    ),
    "per-type spellings": put(
        **{f"num_attention_groups_{kind}": 4 for kind in (SLIDING, FULL)},
        **{f"head_dim_{kind}": 192 for kind in (SLIDING, FULL)},
    ),
    "rotary factor cut to 0.333": put(partial_rotary_factors=[1.0, 1.0, 1.0, 0.333] * 23),
    "empty use_rope_layers": put(use_rope_layers=[]),
    "use_rope_layers all true": put(use_rope_layers=[True] * LONG),
    "sigmoid may be absent": without("moe_router_activation"),
    "eos as one id": put(eos_token_id=[2, 1, 1]),
    "eps has a default": without("rms_norm_eps"),
    "sparse keys bare": bare_sparse,
    "sparse index_tp_size": index_tp_size,
    "sparse without the constant keys": only_needed_sparse,
    "step4_sparse_config": renamed("sparse_config", "step4_sparse_config"),
    "attention_bias false": put(attention_bias=False, mlp_bias=False),
    "the activation named": put(hidden_act="silu", layer_norm_eps=1e-5),
    "integers for numbers": put(swiglu_limits=[7] * LONG, moe_router_scaling_factor=3),
}


@pytest.mark.parametrize("spelling", SAME)
def test_spellings_of_the_release_give_the_same_model(spelling: str) -> None:
    assert parse(edited(SAME[spelling])) == parse(release())


def test_there_are_full_layers_for_another_setting() -> None:
    other = {"attention_type": FULL, "num_attention_heads": 32, "true_head_dim": 96}
    model = changed(attention_other_setting=other)
    assert {(x.heads, x.head_dim) for x in model.layers if x.attention == "full"} == {(32, 96)}
    assert {(x.heads, x.head_dim) for x in model.layers if x.attention == "sliding"} == {(64, 192)}


def test_sparse_attention_that_is_switched_off() -> None:
    model = parse(edited(lambda text: text["sparse_config"].update(enabled=False)))
    assert model == dataclasses.replace(parse(release()), sparse=None)


def test_ssmax_comes_from_the_caller_alone() -> None:
    assert parse(release(), ssmax=True) == dataclasses.replace(parse(release()), ssmax=True)
    assert not parse(release()).ssmax
