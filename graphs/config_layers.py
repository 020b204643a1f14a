"""Per-layer options of config.json: attention kind and shape, rope, clamp limits, MoE or dense.

Knows the spellings of everything that is written once a layer or once a layer type. Keeps true:
lists of length L and of length L+MTP mean the same where the MTP layers are ordinary sliding
layers. Architecture section 1.2.
"""

from typing import Any

from graphs.config import LayerConfig, RopeScaling
from graphs.config_keys import Keys, integer, integers, number
from graphs.errors import ConfigError

WINDOWED = "sliding_attention"
FULL = "full_attention"


def parse_layers(text: Keys) -> tuple[LayerConfig, ...]:
    """All backbone layers, then the MTP layers."""
    depth = integer(text.take("num_hidden_layers"), "num_hidden_layers", least=1)
    mtp = integer(
        text.take("num_nextn_predict_layers", "num_mtp_layers", default=0) or 0, "num_mtp"
    )
    kinds = _layer_types(text, depth, mtp)
    thetas = _per_layer(text, "rope_theta", 1e4, kinds, depth)
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
        rotary = round(head_dim * number(factors[index], "partial_rotary_factors"))
        if rotary % 2 or not 0 < rotary <= head_dim:
            raise ConfigError(
                f"partial_rotary_factors[{index}] = {factors[index]!r}: rotary width {rotary} of "
                f"head_dim {head_dim} is not an even number in 2..head_dim"
            )
        layers.append(
            LayerConfig(
                index=index,
                attention="sliding" if kind == WINDOWED else "full",
                feed_forward="moe" if index in moe else "dense",
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=integer(window, "sliding_window", least=1) if kind == WINDOWED else None,
                rope_theta=number(thetas[index], "rope_theta"),
                rotary_dim=rotary,
                rope_scaling=scaling if kind in scaled_types else None,
                routed_limit=routed[index],
                shared_limit=shared[index],
            )
        )
    return tuple(layers)


def _layer_types(text: Keys, depth: int, mtp: int) -> list[str]:
    """One type a layer; lists of length L leave the MTP layers sliding, as every upload has
    them."""
    short = text.take("layer_types", default=None)
    kinds = list(text.take("layer_types_with_mtp", default=None) or short or [])
    if len(kinds) not in (depth, depth + mtp):
        raise ConfigError(
            f"layer_types has {len(kinds)} entries; num_hidden_layers = {depth} and {mtp} MTP "
            f"layers need {depth} or {depth + mtp}"
        )
    for index, kind in enumerate(kinds):
        if kind not in (WINDOWED, FULL):
            raise ConfigError(
                f"layer_types[{index}] = {kind!r} is not one of {WINDOWED!r}, {FULL!r}"
            )
    kinds += [WINDOWED] * (depth + mtp - len(kinds))
    if FULL in kinds[depth:]:
        raise ConfigError(
            f"layer_types = {kinds[depth:]} for the MTP layers: only {WINDOWED!r} runs"
        )
    return kinds


def _per_layer(text: Keys, key: str, default: float, kinds: list[str], depth: int) -> list[Any]:
    """A scalar for all, a list of L (MTP layers take the first sliding layer's) or of L+MTP."""
    value = text.take(key, default=default)
    if value is None:
        value = default
    if not isinstance(value, list):
        return [value] * len(kinds)
    if len(value) == len(kinds):
        return value
    if len(value) != depth or WINDOWED not in kinds[:depth]:
        raise ConfigError(f"{key} has {len(value)} entries; {depth} or {len(kinds)} are needed")
    return value + [value[kinds.index(WINDOWED)]] * (len(kinds) - depth)


def _limits(text: Keys, key: str, depth: int, mtp: int) -> list[float | None]:
    """Clamp limits: a layer is clamped iff its index is in the list and the value is not 0 or
    null."""
    values = text.take(key, default=None) or []
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
    types = text.take("mlp_layer_types", default=None)
    if not text.take("use_moe", default=True):
        return set()
    spellings: dict[str, set[int]] = {}
    if enum is not None:
        parts = enum.split(",") if isinstance(enum, str) else enum
        try:
            spellings["moe_layers_enum"] = {int(p) for p in parts if str(p).strip()}
        except ValueError:
            raise ConfigError(
                f"moe_layers_enum = {enum!r} is not a list of layer indices"
            ) from None
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


def _rope_everywhere(text: Keys) -> None:
    flags = text.take("use_rope_layers", default=None) or []
    if not all(flags):
        raise ConfigError(f"use_rope_layers = {flags!r}: layers without rope are not supported")


def _rope_scaling(text: Keys) -> tuple[RopeScaling | None, tuple[str, ...]]:
    types = tuple(text.take("yarn_only_types", default=None) or (FULL, WINDOWED))
    scaling = text.section("rope_scaling")
    if scaling is None:
        return None, types
    kind = scaling.take("rope_type", "type", default="default")
    if kind == "default":
        return None, types
    if kind != "llama3":
        raise ConfigError(f"rope_scaling.rope_type = {kind!r} is not supported, only 'llama3'")
    origin = "original_max_position_embeddings"
    rule = RopeScaling(
        factor=number(scaling.take("factor"), "rope_scaling.factor"),
        original_max_positions=integer(scaling.take(origin), f"rope_scaling.{origin}", least=1),
        low_freq_factor=number(scaling.take("low_freq_factor"), "low_freq_factor"),
        high_freq_factor=number(scaling.take("high_freq_factor"), "high_freq_factor"),
    )
    return rule, types


def _attention_shape(text: Keys, kind: str) -> tuple[int, int, int]:
    """(heads, kv_heads, head_dim) of one layer type; sliding layers may override."""
    heads = text.take("num_attention_heads")
    kv_heads = text.take("num_attention_groups", "num_key_value_heads")
    head_dim = text.take("head_dim")
    kv_heads = text.take(f"num_attention_groups_{kind}", default=kv_heads)
    head_dim = text.take(f"head_dim_{kind}", default=head_dim)
    other = text.section("attention_other_setting")
    if other is not None:
        for_kind = other.take("attention_type", default=WINDOWED) == kind
        found = [
            other.take(k, default=None) for k in ("num_attention_heads", "num_attention_groups")
        ]
        widths = other.take("head_dim", "true_head_dim", default=None)
        if for_kind:
            heads, kv_heads = found[0] or heads, found[1] or kv_heads
            head_dim = widths or head_dim
    sliding_heads = text.take("num_sliding_attention_heads", default=None)
    if kind == WINDOWED and sliding_heads is not None:
        heads = sliding_heads
    heads, kv_heads = (
        integer(heads, "num_attention_heads", least=1),
        integer(kv_heads, "groups", least=1),
    )
    if heads % kv_heads:
        raise ConfigError(
            f"num_attention_heads = {heads} is not a multiple of the {kv_heads} groups"
        )
    return heads, kv_heads, integer(head_dim, "head_dim", least=2)
