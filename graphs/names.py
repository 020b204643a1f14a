"""Tensor and module names: the spellings uploads use, brought to the release's own.

Knows prefixes, loader synonyms, and how fused, per-expert and packed names of one module relate.
Does not know shapes or files. Keeps true: two spellings of one tensor have one canonical name, and
a canonical name stays as it is. Architecture 2.1 (synonyms), 2.2 (prefixes).
"""

import re
from collections.abc import Iterator

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
VISION_PREFIXES = ("vision_model.", "vit_large_projector.")

_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.vision_model.", "vision_model."),
    ("model.vit_large_projector.", "vit_large_projector."),
)
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)", re.DOTALL)
_HEADS = {"head": "output", "output": "output", "norm": "norm"}
_FUSED = {
    "q_proj": ("qkv_proj",),
    "k_proj": ("qkv_proj",),
    "v_proj": ("qkv_proj",),
    "gate_proj": ("gate_up_proj",),
    "up_proj": ("gate_up_proj",),
}
_FUSED_EXPERTS = {
    "gate_proj": ("w13_weight", "w13", "gate_up_proj", "0.gate_proj", "gate_proj"),
    "up_proj": ("w13_weight", "w13", "gate_up_proj", "0.up_proj", "up_proj"),
    "down_proj": ("w2_weight", "w2", "0.down_proj", "down_proj"),
}


def canonical(name: str) -> str:
    """The release's spelling of a tensor or module name."""
    for prefix, short in _PREFIXES:
        if name.startswith(prefix):
            name = short + name[len(prefix) :]
            break
    match = _LAYER.fullmatch(name)
    if match is None:
        return name
    layer, rest = match.groups()
    rest = rest.removeprefix("transformer.")
    if rest.startswith("moe.share_expert."):
        rest = rest.removeprefix("moe.")
    elif rest.startswith("shared_head."):
        kind, dot, tail = rest.removeprefix("shared_head.").partition(".")
        rest = f"transformer.shared_head.{_HEADS.get(kind, kind)}{dot}{tail}"
    return f"model.layers.{layer}.{rest}"


def is_vision(name: str) -> bool:
    """Whether a canonical name belongs to the vision tower or its projector."""
    return name.startswith(VISION_PREFIXES)


def layer_index(name: str) -> int | None:
    """The decoder layer a canonical name belongs to, None for globals and vision."""
    match = _LAYER.fullmatch(name)
    return int(match.group(1)) if match else None


def module_spellings(module: str) -> frozenset[str]:
    """Every name under which an exclude list may mean `module` (canonical).

    The routed experts of one projection are one module, `...moe.gate_proj`; expert 0 stands for
    all of them.
    """
    return frozenset(
        prefixed for name in _local_spellings(module) for prefixed in _prefix_spellings(name)
    )


def _local_spellings(module: str) -> Iterator[str]:
    parent, _, last = module.rpartition(".")
    yield module
    if parent.endswith(".moe") and last in PROJECTIONS:
        yield f"{parent}.experts"
        yield from (f"{parent}.experts.{name}" for name in _FUSED_EXPERTS[last])
    else:
        yield from (f"{parent}.{name}" for name in _FUSED.get(last, ()))
    if ".share_expert." in module:
        yield module.replace(".share_expert.", ".moe.share_expert.")
    if ".transformer.shared_head." in module:
        synonym = module.replace(".transformer.", ".")
        yield synonym
        yield re.sub(r"\.output$", ".head", synonym)


def _prefix_spellings(name: str) -> Iterator[str]:
    yield name
    dotted = f"{name}."
    for prefix, short in _PREFIXES:
        if dotted.startswith(short):
            yield (prefix + dotted.removeprefix(short)).removesuffix(".")
    if name.startswith("model."):
        yield name.removeprefix("model.")
