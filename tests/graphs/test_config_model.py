"""Quantisation claims, stop ids, unknown keys, and what makes two models the same one.

Architecture 1.5 (quantization_config), 1.2 (stop set).
"""

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphs.config import LayerConfig
from graphs.config_json import load_config, parse_config
from tests.graphs.configs import edited, parse, put, release
from tests.sources import ROOT, environment

FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["model.layers.88.moe.experts.w2_weight"],
}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["*a*"]}


@pytest.mark.parametrize("place", ["top", "text", "both"])
def test_quantisation_may_stand_in_either_place(place: str) -> None:
    config = release()
    if place != "text":
        config["quantization_config"] = FP8
    if place != "top":
        config["text_config"]["quantization_config"] = FP8
    quant = parse(config).quant
    assert quant is not None
    assert (quant.method, quant.algo, quant.group_size) == ("fp8", None, None)
    assert quant.block_size == (128, 128)
    assert quant.exclude == ("model.layers.88.moe.experts.w2_weight",)


def nested_quant(quant: dict[str, Any]) -> dict[str, Any]:
    """As hf_quant_config.json has it."""
    inner = {key: value for key, value in quant.items() if key != "quant_method"}
    inner["exclude_modules"] = inner.pop("ignore")
    inner["kv_cache_quant_algo"] = None
    return {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": inner}


@pytest.mark.parametrize(
    "section", [NVFP4, nested_quant(NVFP4), {**nested_quant(NVFP4), "quant_method": "modelopt"}]
)
def test_nvfp4_flat_and_nested_are_the_same(section: dict[str, Any]) -> None:
    quant = parse({**release(), "quantization_config": section}).quant
    assert quant is not None
    assert (quant.method, quant.algo, quant.group_size) == ("modelopt", "NVFP4", 16)
    assert (quant.exclude, quant.block_size) == (("*a*",), None)


@pytest.mark.parametrize(
    ("config_ids", "generation", "expected"),
    [
        ([1, 2], {"eos_token_id": [1, 2, 128007]}, (1, 2, 128007)),
        ([1, 2], {"eos_token_id": 128007}, (1, 2, 128007)),
        ([1, 2], {"eos_token_id": 0}, (0, 1, 2)),
        ([1, 2], {"eos_token_id": None}, (1, 2)),
        ([1, 2], {"temperature": 1.0}, (1, 2)),
        (None, {"eos_token_id": [5]}, (5,)),
        (0, None, (0,)),
    ],
)
def test_stop_ids_are_the_union(
    config_ids: Any, generation: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    config = edited(put(eos_token_id=config_ids))
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert load_config(tmp_path).stop_ids == expected


def test_unknown_keys_give_one_warning_that_names_them_all_once() -> None:
    config = edited(put(new_text_key=1, sink=None))
    config["new_top_key"] = {"inner": 1}
    for section, key in (("sparse_config", "new_sparse"), ("rope_scaling", "attention_factor")):
        config["text_config"][section][key] = 1
    config["vision_config"]["new_vision"] = 1
    config["quantization_config"] = {**NVFP4, "new_quant": 1}
    with pytest.warns(UserWarning, match="unknown keys ignored") as caught:
        model = parse_config(config)
    assert model.layers == parse(release()).layers
    assert len(caught) == 1
    names = str(caught[0].message).rpartition(": ")[2].split(", ")
    assert names == [
        "new_top_key",
        "quantization_config.new_quant",
        "text_config.new_text_key",
        "text_config.rope_scaling.attention_factor",
        "text_config.sink",
        "text_config.sparse_config.new_sparse",
        "vision_config.new_vision",
    ]


def test_a_config_is_frozen_and_takes_keywords_only() -> None:
    model = parse(release())
    parts: list[Any] = [model, model.layers[0], model.moe, model.sparse, model.vision]
    for part in parts:
        names = [field.name for field in dataclasses.fields(part)]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, names[0], 1)
        with pytest.raises(TypeError, match="positional"):
            type(part)(*(getattr(part, name) for name in names))


def test_the_digest_is_that_of_the_content() -> None:
    model = parse(release())
    assert model.digest == parse(release()).digest == dataclasses.replace(model).digest
    assert re.fullmatch("[0-9a-f]{64}", model.digest)


def test_the_digest_is_the_same_in_another_process() -> None:
    code = "from tests.graphs.configs import parse, release; print(parse(release()).digest)"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(PYTHONHASHSEED="1"),
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert printed.strip() == parse(release()).digest


def other(value: Any) -> Any:
    """Some other value of the same kind."""
    simple: dict[type, Callable[[Any], Any]] = {
        bool: lambda v: not v,
        int: lambda v: v + 1,
        float: lambda v: v * 2,
        str: lambda v: v + "x",
        tuple: lambda v: v[:-1],
        type(None): lambda _: 1,
    }
    if type(value) in simple:
        return simple[type(value)](value)
    field = dataclasses.fields(value)[-1].name
    return dataclasses.replace(value, **{field: other(getattr(value, field))})


def test_the_digest_changes_with_every_field() -> None:
    model = parse({**release(), "quantization_config": NVFP4})
    variants = [
        dataclasses.replace(model, **{field.name: other(getattr(model, field.name))})
        for field in dataclasses.fields(model)
    ]
    for name in ("moe", "sparse", "vision", "quant"):
        part = getattr(model, name)
        for field in dataclasses.fields(part):
            new = dataclasses.replace(part, **{field.name: other(getattr(part, field.name))})
            variants.append(dataclasses.replace(model, **{name: new}))
    for field in dataclasses.fields(LayerConfig):
        first, *rest = model.layers
        new = dataclasses.replace(first, **{field.name: other(getattr(first, field.name))})
        variants.append(dataclasses.replace(model, layers=(new, *rest)))
    digests = {model.digest, *(variant.digest for variant in variants)}
    assert len(digests) == 1 + len(variants) - 4  # the last field of each section came twice
