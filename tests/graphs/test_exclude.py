"""B6: exclude lists in every spelling; contradictions and idle patterns are named."""

import warnings
from pathlib import Path

import pytest

from graphs.checkpoint import Checkpoint
from graphs.errors import CheckpointError
from graphs.exclude import exclude_notes
from tests.graphs import variants

GATE, UP, DOWN = (f"model.layers.6.moe.{p}_proj" for p in ("gate", "up", "down"))
PLAIN: dict[str, str | None] = {
    GATE: None,
    UP: None,
    DOWN: None,
    "model.layers.6.moe.gate": None,
    "model.layers.6.self_attn.q_proj": None,
    "model.layers.6.self_attn.k_proj": None,
    "model.layers.6.share_expert.up_proj": None,
    "model.layers.7.mlp.gate_proj": None,
    "model.layers.8.eh_proj": None,
    "model.layers.8.transformer.shared_head.output": None,
    "vision_model.conv1": None,
    "vit_large_projector": None,
    "lm_head": None,
}


def covered(pattern: str) -> set[str]:
    """Modules the pattern covers, read off the contradiction notes of an all-quantised model."""
    found = set()
    for module in PLAIN:
        notes = exclude_notes([pattern], {module: "NVFP4"}, claimed=True)
        if any("the tensors decide" in note for note in notes):
            found.add(module)
    return found


EXPERTS = {GATE, UP, DOWN}
# Some uploads call the shared expert moe.share_expert, so a wildcard behind `moe.` covers it too.
MOE_WIDE = EXPERTS | {"model.layers.6.share_expert.up_proj"}
SPELLINGS = {
    "model.layers.6.moe.gate_proj": {GATE},
    "model.layers.6.moe.gate_proj.weight": {GATE},
    "layers.6.moe.down_proj": {DOWN},
    "model.language_model.layers.6.moe.up_proj": {UP},
    "language_model.model.layers.6.moe.up_proj": {UP},
    "model.layers.6.moe.experts": EXPERTS,
    "model.layers.6.moe.experts.w13_weight": {GATE, UP},
    "model.layers.6.moe.experts.w2_weight": {DOWN},
    "model.layers.6.moe.experts.gate_up_proj": {GATE, UP},
    "model.layers.6.moe.experts.5.gate_proj": {GATE},
    "layers.6.moe.experts.0.down_proj": {DOWN},
    "*.moe.experts.*": EXPERTS,
    "*layers.6.moe.*_proj": MOE_WIDE,
    "language_model.model.layers.6.moe.*_proj": MOE_WIDE,
    "layers.6.moe.*_proj": MOE_WIDE,
    "*moe.gate": {"model.layers.6.moe.gate"},
    "*layers.8.*": {"model.layers.8.eh_proj", "model.layers.8.transformer.shared_head.output"},
    "model.layers.8": {"model.layers.8.eh_proj", "model.layers.8.transformer.shared_head.output"},
    "*.shared_head.head": {"model.layers.8.transformer.shared_head.output"},
    r"re:.*layers\.8\.eh_.*": {"model.layers.8.eh_proj"},
    r"re:model\.language_model\.layers\.6\.self_attn": {
        "model.layers.6.self_attn.q_proj",
        "model.layers.6.self_attn.k_proj",
    },
    "*self_attn.qkv_proj": {"model.layers.6.self_attn.q_proj", "model.layers.6.self_attn.k_proj"},
    "*mlp.gate_up_proj": {"model.layers.7.mlp.gate_proj"},
    "*.moe.share_expert.*": {"model.layers.6.share_expert.up_proj"},
    "model.vision_model*": {"vision_model.conv1"},
    "*vision_model*": {"vision_model.conv1"},
    "vit_large_projector": {"vit_large_projector"},
    "language_model.lm_head": {"lm_head"},
    "lm_head": {"lm_head"},
    "mlp": {"model.layers.7.mlp.gate_proj"},
    "moe.gate": {"model.layers.6.moe.gate"},
    "eh": set(),
    "model.layers.66.moe.gate_proj": set(),
    "re:moe": set(),  # an expression is anchored at the beginning of a name
}


@pytest.mark.parametrize("pattern", SPELLINGS)
def test_b6_every_spelling_covers_its_modules(pattern: str) -> None:
    assert covered(pattern) == SPELLINGS[pattern]


def test_b6_an_idle_pattern_is_a_warning_with_the_pattern(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "variant", "nvfp4-packed")
    variants.edit_config(
        folder, lambda c: c["quantization_config"]["ignore"].append("*layers.92.*")
    )
    with pytest.warns(UserWarning, match=r"match no module: \*layers\.92\.\*"):
        assert len(Checkpoint.open(folder).notes) == 1


def test_b6_a_contradiction_is_a_warning_and_the_tensors_decide(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "variant", "nvfp4-packed")
    variants.edit_json(
        folder / "hf_quant_config.json",
        lambda c: c["quantization"]["exclude_modules"].append("*layers.3.moe.*"),
    )
    with pytest.warns(UserWarning, match=r"layers\.3\.moe\.\*.*model\.layers\.3\.moe\.gate_proj"):
        checkpoint = Checkpoint.open(folder)
    assert checkpoint.layouts["model.layers.3.moe.gate_proj"].label == "NVFP4"


def test_b6_uncovered_bf16_experts_are_named(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "variant", "fp8")
    variants.edit_config(
        folder, lambda c: c["quantization_config"].update(modules_to_not_convert=["lm_head"])
    )
    with pytest.warns(UserWarning, match=r"not quantised.*model\.layers\.6\.moe\.down_proj"):
        Checkpoint.open(folder)


def test_b6_quantised_tensors_without_any_config_are_named(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "variant", "nvfp4-packed")
    variants.edit_config(folder, lambda config: config.pop("quantization_config"))
    (folder / "hf_quant_config.json").unlink()
    with pytest.warns(UserWarning, match="no quantization_config"):
        Checkpoint.open(folder).load()


def test_b6_per_expert_patterns_count_once() -> None:
    patterns = [f"model.layers.6.moe.experts.{expert}.gate_proj" for expert in range(16)]
    assert len(exclude_notes(patterns, {GATE: "NVFP4"}, claimed=True)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert exclude_notes(patterns, {GATE: None}, claimed=True) == []


def test_b6_a_broken_expression_is_refused() -> None:
    with pytest.raises(CheckpointError, match="not a regular expression"):
        exclude_notes(["re:("], PLAIN, claimed=True)
