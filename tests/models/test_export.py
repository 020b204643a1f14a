"""The exporter: every tensor exactly once, or nothing; and what it writes is what was trained.

Knows a tiny model of random weights and reads it back with the strict loader.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from graphs.checkpoint import Checkpoint
from models.recipe.data import PAD_ID
from models.recipe.dims import Dims, shapes
from models.recipe.drafts import following_tokens
from models.recipe.export import export
from models.recipe.model import Model, initial_parameters
from models.recipe.tokenizer import SPECIALS, save_tokenizer, train_tokenizer
from tests.graphs import whole

VOCABULARY = len(SPECIALS) + 256
TINY = Dims(
    hidden=32, vocabulary=VOCABULARY, layers=4, mtp_layers=3, ff=32, heads=4, head_dim=12,
    full_layers=(3,), moe_layers=(1, 2), experts=4, chosen=2, expert_ff=16, shared_ff=16,
)  # fmt: skip
# bf16 products in two orders of summation, up to seven layers deep, on logits of size about 3
TOLERANCE, MEAN_TOLERANCE = 0.25, 0.03


@pytest.fixture(scope="module")
def parameters() -> dict[str, Tensor]:
    """Random weights in which nothing is zero, as after training."""
    generator = torch.Generator().manual_seed(3)
    made = initial_parameters(TINY, 3)
    for name, p in made.items():
        if len(p.shape) == 1 and not name.endswith("ssmax_s"):
            p.add_(torch.randn(p.shape, generator=generator) * 0.1)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            p.copy_(torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5)
        elif "head" in name:
            p.mul_(8.0)
        p.copy_(p.bfloat16().float())
    return made


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(["a"], vocabulary=VOCABULARY), folder)
    return folder


@pytest.fixture(scope="module")
def folder(
    parameters: dict[str, Tensor], tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("checkpoint")
    export(parameters, TINY, tokenizer_folder, out)
    return out


def test_the_index_names_every_tensor(folder: Path) -> None:
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(shapes(TINY)) <= set(index)
    extra = set(index) - set(shapes(TINY))
    assert all(name.endswith(("_scale", "_scale_2", ".input_scale")) for name in extra)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.6.eh_proj.weight"])
def test_a_missing_tensor_stops_the_export(
    name: str, parameters: dict[str, Tensor], tokenizer_folder: Path, tmp_path: Path
) -> None:
    rest = {key: value for key, value in parameters.items() if key != name}
    with pytest.raises(ValueError, match=name):
        export(rest, TINY, tokenizer_folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tensor_too_many_or_of_another_shape_stops_the_export(
    parameters: dict[str, Tensor], tokenizer_folder: Path, tmp_path: Path
) -> None:
    for change in ({"more": torch.zeros(1)}, {"model.norm.weight": torch.zeros(3)}):
        with pytest.raises(ValueError, match="missing, unexpected or of another shape"):
            export(parameters | change, TINY, tokenizer_folder, tmp_path / "out")


def assert_near(served: Tensor, trained: Tensor) -> None:
    difference = (served - trained.float()).abs()
    assert float(difference.max()) <= TOLERANCE
    assert float(difference.mean()) <= MEAN_TOLERANCE


def test_inference_computes_what_was_trained(parameters: dict[str, Tensor], folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    loaded = whole.Model(config=checkpoint.config, weights=checkpoint.load())
    model = Model(TINY, parameters, torch.device("cpu"))
    model.quantised = True
    ids = torch.randint(3, VOCABULARY, (193,), generator=torch.Generator().manual_seed(1))
    place = model.place(torch.zeros(1, 192, dtype=torch.int64))
    trained = model.trunk(ids[None, :-1], place, sparse=True)
    r_TH = whole.residual(loaded, ids[:-1], torch.bfloat16)
    served = whole.logits(loaded, r_TH, torch.bfloat16)
    assert_near(served, trained.logits[0])
    next_TD = following_tokens(ids[None], TINY.mtp_layers)
    assert int(next_TD[0, -1, -1]) == PAD_ID
    drafts = model.mtp(trained.residual, next_TD, place)
    chain = whole.chain(loaded, r_TH, next_TD[0].T, torch.bfloat16)
    for draft, (_, logits) in zip(drafts, chain, strict=True):
        assert_near(logits, draft[0])
