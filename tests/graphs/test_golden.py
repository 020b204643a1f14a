"""The model in float32 against the golden data of an independent full-recompute reference.

Tolerances are those of tests/golden/README.md: 2e-4 for floats, exact for tokens and selections.
"""

import pytest
import torch

from graphs.layers.indexer import choose_regions
from tests.graphs.whole import (
    FP32,
    chain,
    drafts_from_scratch,
    fresh_state,
    golden,
    golden_model,
    layer_inputs,
    logits,
    normed,
    residual,
    rotary_of,
    rows_at,
)

TOLERANCE = 2e-4
LENGTHS = (5, 60, 150)


def close(found: torch.Tensor, name: str) -> None:
    expected = golden()[name]
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("length", LENGTHS)
def test_residual_and_logits(length: int) -> None:
    r_TH = residual(golden_model(), golden()[f"prompt_{length}"].long())
    close(r_TH, f"residual_{length}")
    close(logits(golden_model(), r_TH), f"logits_{length}")


def test_every_layer() -> None:
    model = golden_model()
    _, *after = layer_inputs(model, golden()["prompt_5"].long(), fresh_state(model))
    close(torch.stack(after), "layers_5")


@pytest.mark.parametrize(
    ("kind", "name"), [("nvfp4-packed", "nvfp4"), ("nvfp4-per-expert", "nvfp4"), ("fp8", "fp8")]
)
def test_quantised_logits(kind: str, name: str) -> None:
    model = golden_model(kind)
    close(logits(model, residual(model, golden()["prompt_60"].long())), f"{name}_logits_60")


def test_the_quantised_logits_are_not_those_of_bf16() -> None:
    found = logits(golden_model(), residual(golden_model(), golden()["prompt_60"].long()))
    for name in ("nvfp4_logits_60", "fp8_logits_60"):
        assert (found - golden()[name]).abs().max() > 100 * TOLERANCE


def test_region_selection_and_summaries() -> None:
    model, ids = golden_model(), golden()["prompt_150"].long()
    state, rows = fresh_state(model), rows_at(0, 150)
    assert model.config.sparse is not None
    *inputs, _ = layer_inputs(model, ids, state)
    for place, layer in enumerate(model.config.full_layers):
        weights, indexer = model.weights.layers[layer].attention.indexer, state.indexers[layer]
        assert weights is not None
        assert indexer is not None
        ids_TGK = choose_regions(
            *(normed(model, inputs[layer], layer), rows),
            *(rotary_of(model.config, model.config.layers[layer], rows, FP32), weights, indexer),
            *(state.full_table, model.config.sparse, model.config.rms_eps),
        )
        assert torch.equal(ids_TGK.transpose(0, 1), golden()["sel_150"][place].long())
        written = indexer.summary[1:].flatten(0, 1)[:18].float()
        expected = golden()["summary_150"][place].float()
        different = written != expected
        assert different.float().mean() < 0.01  # isolated entries, one e4m3 step apart
        assert ((written - expected).abs() <= expected.abs() / 8 + 2**-9).all()


@pytest.mark.parametrize("length", LENGTHS)
def test_teacher_forced_mtp(length: int) -> None:
    model = golden_model()
    r_TH = residual(model, golden()[f"prompt_{length}"].long())
    results = chain(model, r_TH, golden()[f"mtp_input_{length}"].long())
    close(torch.stack([logits for _, logits in results]), f"mtp_logits_{length}")
    tokens = torch.stack([logits.argmax(-1) for _, logits in results])
    assert torch.equal(tokens, golden()[f"mtp_tokens_{length}"].long())
    if length == 5:
        close(torch.stack([hidden for hidden, _ in results]), "mtp_residual_5")


@pytest.mark.parametrize("length", LENGTHS)
def test_drafts_from_scratch(length: int) -> None:
    """The helper that other tests compare with is itself held to the golden drafts."""
    start = golden()[f"prompt_{length}"].tolist() + golden()[f"greedy_{length}"].tolist()
    for step in (0, 5, 11):
        processed = int(golden()[f"spec_processed_{length}"][step])
        found = drafts_from_scratch(golden_model(), torch.tensor(start[: processed + 1]), 3)
        assert found == golden()[f"spec_drafts_{length}"][step].tolist()


def test_the_hidden_state_after_the_final_norm_is_the_wrong_input() -> None:
    """Feeding the chain what other families feed it must be seen (fault A8)."""
    model = golden_model()
    r_TH = residual(model, golden()["prompt_60"].long())
    final = (r_TH * torch.rsqrt(r_TH.square().mean(-1, keepdim=True) + 1e-5)) * (
        1 + model.weights.norm
    )
    [(_, wrong), *_] = chain(model, final, golden()["mtp_input_60"].long())
    assert (wrong - golden()["mtp_logits_60"][0]).abs().max() > 100 * TOLERANCE


def test_each_depth_has_its_own_head() -> None:
    """Fault A3: no MTP head is the backbone's, nor another depth's."""
    heads = [golden_model().weights.head, *(mtp.head for mtp in golden_model().weights.mtp)]
    for place, one in enumerate(heads):
        assert not any(torch.equal(one, other) for other in heads[place + 1 :])
