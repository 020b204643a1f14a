"""Whatever stands in config.json, the answer is a ModelConfig or a ConfigError.

Starts from the full-size configs, so that deep places are reached, and breaks a few values in each.
"""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.config import ModelConfig
from graphs.config_json import load_config, parse_config
from graphs.errors import ConfigError
from tests.graphs.configs import Json, relative, release

QUANT = {
    "quant_method": "modelopt",
    "group_size": 16,
    "weight_block_size": [128, 128],
    "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"], "group_size": 16},
}
BASES = (
    {**release(), "quantization_config": QUANT},
    {**relative(), "layer_types_with_mtp": relative()["layer_types"], "mlp_layer_types": None},
)
Place = tuple[str | int, ...]


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in a JSON value; of a list only the ends and one inside."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list) and value:
        for index in sorted({0, len(value) // 2, len(value) - 1}):
            yield from places(value[index], (*at, index))


PLACES = [(base, place) for base in range(len(BASES)) for place in places(BASES[base])]

SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(-5, 2000), st.integers(), st.floats(), st.text()),
    st.sampled_from(
        [
            *(10**18, 10**400, -(10**400), 1e308, 5e-324, float("nan"), float("inf")),
            *("llama3", "full_attention", "sparse", "3,4", "\u0664", "1_0", "nan"),
        ]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
DELETED: Any = object()


def change(config: Json, place: Place, value: Any) -> None:
    """Replace or delete what is at a place, if it is still there."""
    *path, last = place
    target: Any = config
    for step in path:
        try:
            target = target[step]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(target, dict) and value is DELETED:
        target.pop(last, None)
    elif isinstance(target, dict):
        target[last] = value
    elif isinstance(target, list) and isinstance(last, int) and last < len(target):
        target[last] = None if value is DELETED else value


def outcome(config: Any) -> ModelConfig | ConfigError:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return parse_config(config)
        except ConfigError as error:
            return error


CHANGES = st.lists(
    st.tuples(st.sampled_from(PLACES), st.one_of(VALUES, st.just(DELETED))), min_size=1, max_size=3
)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(CHANGES)
def test_broken_values(changes: list[tuple[tuple[int, Place], Any]]) -> None:
    base = changes[0][0][0]
    config = json.loads(json.dumps(BASES[base]))
    for (of, place), value in changes:
        if of == base:
            change(config, place, value)
    found = outcome(config)
    if isinstance(found, ModelConfig):  # what is accepted has an identity and plain fields
        assert len(found.digest) == 64
        assert all(0 < x.rotary_dim <= x.head_dim for x in (*found.layers, *found.mtp_layers))


@pytest.mark.parametrize(("base", "place"), PLACES, ids=str)
def test_every_place_with_every_kind_of_value(base: int, place: Place) -> None:
    kinds = (None, True, -1, 0, 3, 10**400, 0.5, float("nan"), "x", "3", [], [None], {}, {"a": 1})
    for value in (*kinds, DELETED):
        config = json.loads(json.dumps(BASES[base]))
        change(config, place, value)
        outcome(config)


FILES = {
    "empty": b"",
    "brace": b"{",
    "cut": b'{"a": 1',
    "name": b"nan",
    "not utf-8": b"\x80",
    "digits": b'{"a": ' + b"9" * 5000 + b"}",
    "deep": b"[" * 100_000,
    "list": b"[]",
    "number": b"3",
}


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_no_json_object(kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(FILES[kind])
    words = "holds a" if kind in ("list", "number") else "not valid JSON"
    with pytest.raises(ConfigError, match=rf"config\.json: {words}"):
        load_config(tmp_path)


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        load_config(tmp_path)
