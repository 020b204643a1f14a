"""Per-layer options of config.json: attention kind and shape, rope, clamp limits, MoE or dense.

Knows the spellings of everything that is written once a layer or once a layer type. Keeps true:
lists of length L and of length L+MTP mean the same where the MTP layers are ordinary sliding
layers. Architecture section 1.2.
"""

from typing import Any

from graphs.config import LayerConfig, RopeScaling
from graphs.config_keys import MISSING, Keys, choices, integer, integers, number, positive
from graphs.errors import ConfigError

WINDOWED = "sliding_attention"
FULL = "full_attention"
MAX_LAYERS = 1024  # far above any model; a wrong number must not become a list of that length


def parse_layers(text: Keys) -> tuple[LayerConfig, ...]:
    """All backbone layers, then the MTP layers."""
    depth = integer(text.take("num_hidden_layers"), "num_hidden_layers", least=1, most=MAX_LAYERS)
    chain = text.take("num_nextn_predict_layers", "num_mtp_layers", default=None)
    mtp = 0 if chain is None else integer(chain, "num_nextn_predict_layers", most=MAX_LAYERS)
    kinds = _layer_types(text, depth, mtp)
    thetas = _per_layer(text, "rope_theta", MISSING, kinds, depth)
    factors = _per_layer(text, "partial_rotary_factors", 1.0, kinds, depth)
    routed = _limits(text, "swiglu_limits", depth, mtp)
    shared = _limits(text, "swiglu_limits_shared", depth, mtp)
    moe = _moe_layers(text, depth, mtp)
    _rope_everywhere(text)
    scaling, scaled_types = _rope_scaling(text)
    window = text.take("sliding_window", default=None)
    shapes = {kind: _attention_shape(text, kind) for kind in (WINDOWED, FULL)}
    layers = []
    for index, kind in enumerate(kinds):
        heads, kv_heads, head_dim = shapes[kind]
        layers.append(
            LayerConfig(
                index=index,
                attention="sliding" if kind == WINDOWED else "full",
                feed_forward="moe" if index in moe else "dense",
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=integer(window, "sliding_window", least=1) if kind == WINDOWED else None,
                rope_theta=thetas[index],
                rotary_dim=_rotary_dim(head_dim, factors[index], index),
                rope_scaling=scaling if kind in scaled_types else None,
                routed_limit=routed[index],
                shared_limit=shared[index],
            )
        )
    return tuple(layers)


def _rotary_dim(head_dim: int, factor: float, index: int) -> int:
    """`round`, not `int`: a literal cut to 0.333 still means 64 of 192."""
    rotary = round(head_dim * factor) if factor <= 1 else 0
    if rotary % 2 or not rotary:
        raise ConfigError(
            f"partial_rotary_factors[{index}] = {factor!r} of head_dim {head_dim} is not an even "
            "number of dims from 2 to head_dim"
        )
    return rotary


def _layer_types(text: Keys, depth: int, mtp: int) -> list[str]:
    """One type a layer; lists of length L leave the MTP layers sliding, as in every upload."""
    names = ("layer_types", "layer_types_with_mtp")
    found = [_type_list(text, name, (WINDOWED, FULL), WINDOWED, depth, mtp) for name in names]
    given = [kinds for kinds in found if kinds is not None]
    if not given:
        raise ConfigError(f"missing key {' or '.join(names)}")
    for index, (one, other) in enumerate(zip(given[0], given[-1], strict=True)):
        if one != other:
            raise ConfigError(f"{names[0]}[{index}] = {one!r} contradicts {names[1]} = {other!r}")
    if FULL in given[0][depth:]:
        raise ConfigError(
            f"layer_types = {given[0][depth:]} for the MTP layers: only {WINDOWED!r} runs"
        )
    return given[0]


def _type_list(
    text: Keys, key: str, allowed: tuple[str, ...], mtp_type: str, depth: int, mtp: int
) -> list[str] | None:
    """A list of L or L+MTP types as one of L+MTP, None when absent."""
    value = text.take(key, default=None)
    if value is None:
        return None
    kinds = choices(value, key, allowed)
    if len(kinds) not in (depth, depth + mtp):
        raise ConfigError(
            f"{key} has {len(kinds)} entries; num_hidden_layers = {depth} and {mtp} MTP layers "
            f"need {depth} or {depth + mtp}"
        )
    return kinds + [mtp_type] * (depth + mtp - len(kinds))


def _per_layer(text: Keys, key: str, default: Any, kinds: list[str], depth: int) -> list[float]:
    """A scalar for all, a list of L (MTP layers take the first sliding layer's) or of L+MTP."""
    value = text.take(key, default=default)
    if value is None and default is not MISSING:
        value = default
    if not isinstance(value, list):
        return [positive(value, key)] * len(kinds)
    values = [positive(entry, f"{key}[{index}]") for index, entry in enumerate(value)]
    if len(values) == len(kinds):
        return values
    if len(values) != depth or WINDOWED not in kinds[:depth]:
        raise ConfigError(f"{key} has {len(values)} entries; {depth} or {len(kinds)} are needed")
    return values + [values[kinds.index(WINDOWED)]] * (len(kinds) - depth)


def _limits(text: Keys, key: str, depth: int, mtp: int) -> list[float | None]:
    """Clamp limits: a layer is clamped iff its index is in the list and its value not 0 or null."""
    values = text.take(key, default=None)
    values = [] if values is None else values
    if not isinstance(values, list) or (values and not depth <= len(values) <= depth + mtp):
        raise ConfigError(
            f"{key} = {values!r}: expected a list of {depth} to {depth + mtp} entries or none"
        )
    for index, value in enumerate(values):
        if value is not None and number(value, f"{key}[{index}]") < 0:
            raise ConfigError(f"{key}[{index}] = {value!r} is negative")
    return [float(v) if v else None for v in values] + [None] * (depth + mtp - len(values))


def _moe_layers(text: Keys, depth: int, mtp: int) -> set[int]:
    enum = text.take("moe_layers_enum", default=None)
    listed = text.take("moe_layer_list", default=None)
    types = _type_list(text, "mlp_layer_types", ("dense", "sparse"), "dense", depth, mtp)
    if not text.flag("use_moe", default=True):
        return set()
    spellings: dict[str, set[int]] = {}
    if enum is not None:
        spellings["moe_layers_enum"] = _enumerated(enum)
    if listed is not None:
        spellings["moe_layer_list"] = set(integers(listed, "moe_layer_list"))
    if types is not None:
        spellings["mlp_layer_types"] = {i for i, kind in enumerate(types) if kind == "sparse"}
    if not spellings:  # what upstream assumes when no list is given
        return set(range(1, depth))
    (first, layers), *others = spellings.items()
    for name, other in others:
        if other != layers:
            raise ConfigError(f"{first} = {sorted(layers)} contradicts {name} = {sorted(other)}")
    if out := sorted(i for i in layers if not 0 <= i < depth):
        raise ConfigError(f"{first} names layers {out}; MoE layers lie in 0..{depth - 1}")
    return layers


def _enumerated(value: Any) -> set[int]:
    """moe_layers_enum: layer indices in a text with commas, or in a list."""
    if not isinstance(value, str):
        return set(integers(value, "moe_layers_enum"))
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise ConfigError(f"moe_layers_enum = {value!r} is not a list of layer indices")
    return {int(part) for part in parts}


def _rope_everywhere(text: Keys) -> None:
    flags = text.take("use_rope_layers", default=None)
    if flags is not None and (not isinstance(flags, list) or any(f is not True for f in flags)):
        raise ConfigError(f"use_rope_layers = {flags!r}: layers without rope are not supported")


def _rope_scaling(text: Keys) -> tuple[RopeScaling | None, tuple[str, ...]]:
    """The rule and the layer types it is for; no yarn_only_types, or none in it, means all."""
    listed = text.take("yarn_only_types", default=None)
    types = () if listed is None else choices(listed, "yarn_only_types", (FULL, WINDOWED))
    scaling = text.section("rope_scaling")
    if scaling is None:
        return None, ()
    kind = scaling.take("rope_type", "type", default="default")
    if kind == "default":
        return None, ()
    if kind != "llama3":
        raise ConfigError(f"rope_scaling.rope_type = {kind!r} is not supported, only 'llama3'")
    origin = "original_max_position_embeddings"
    low, high = (
        positive(scaling.take(key), f"rope_scaling.{key}")
        for key in ("low_freq_factor", "high_freq_factor")
    )
    if high <= low:
        raise ConfigError(f"rope_scaling.high_freq_factor = {high} is not over {low}, the low one")
    rule = RopeScaling(
        factor=positive(scaling.take("factor"), "rope_scaling.factor"),
        original_max_positions=integer(scaling.take(origin), f"rope_scaling.{origin}", least=1),
        low_freq_factor=low,
        high_freq_factor=high,
    )
    return rule, tuple(types) or (FULL, WINDOWED)


def _attention_shape(text: Keys, kind: str) -> tuple[int, int, int]:
    """(heads, kv_heads, head_dim) of one layer type."""
    other = _other_setting(text, kind)
    sliding = text.take("num_sliding_attention_heads", default=None)
    heads = _override(
        ("num_attention_heads", text.take("num_attention_heads")),
        ("attention_other_setting.num_attention_heads", other.get("heads")),
        ("num_sliding_attention_heads", sliding if kind == WINDOWED else None),
    )
    own = f"num_attention_groups_{kind}"
    kv_heads = _override(
        ("num_attention_groups", text.take("num_attention_groups", "num_key_value_heads")),
        (own, text.take(own, default=None)),
        ("attention_other_setting.num_attention_groups", other.get("groups")),
    )
    own = f"head_dim_{kind}"
    head_dim = _override(
        ("head_dim", text.take("head_dim")),
        (own, text.take(own, default=None)),
        ("attention_other_setting.head_dim", other.get("width")),
    )
    if heads % kv_heads:
        raise ConfigError(
            f"num_attention_heads = {heads} is not a multiple of the {kv_heads} groups"
        )
    return heads, kv_heads, integer(head_dim, "head_dim", least=2)


def _other_setting(text: Keys, kind: str) -> dict[str, Any]:
    """What attention_other_setting says about layers of this type."""
    other = text.section("attention_other_setting")
    if other is None:
        return {}
    other.one_of("attention_type", (WINDOWED, FULL))
    values = {
        "heads": other.take("num_attention_heads", default=None),
        "groups": other.take("num_attention_groups", default=None),
        "width": other.take("head_dim", "true_head_dim", default=None),
    }
    return values if (other.take("attention_type", default=None) or WINDOWED) == kind else {}


def _override(base: tuple[str, Any], *overrides: tuple[str, Any]) -> int:
    """The base, unless something says otherwise for this layer type; two that do have to agree."""
    given = [(name, integer(v, name, least=1)) for name, v in overrides if v is not None]
    for name, value in given[1:]:
        if value != given[0][1]:
            first = f"{given[0][0]} = {given[0][1]}"
            raise ConfigError(f"{first} contradicts {name} = {value}")
    return given[0][1] if given else integer(base[1], base[0], least=1)
