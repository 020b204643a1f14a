"""The checkpoint in models/step5-nano: small, whole, and the model that the recipe describes.

Knows the shipped files; the speed and the equality of speculation are tested with the runtime.
"""

import json
from pathlib import Path

import torch
from safetensors import safe_open

from graphs.checkpoint import Checkpoint
from models.recipe.dims import Dims, shapes
from models.recipe.model import Model
from models.recipe.tokenizer import TEMPLATE
from tests.graphs import whole

NANO = Path(__file__).parents[2] / "models" / "step5-nano"
LIMIT = 20 * 1000 * 1000
TEXT = list(range(300, 400)) + list(range(320, 412))
# bf16 products in two orders of summation; logits reach about 20
TOLERANCE, MEAN_TOLERANCE = 1.0, 0.05


def shipped_parameters(loaded: whole.Model) -> dict[str, torch.Tensor]:
    """Training's view of the shipped tensors, experts dequantised."""
    files = json.loads((NANO / "model.safetensors.index.json").read_text())["weight_map"]
    result = {}
    for name, shape in shapes(Dims()).items():
        with safe_open(NANO / files[name], "pt") as file:
            value = file.get_tensor(name)
        if value.dtype == torch.uint8:
            layer, projection = int(name.split(".")[2]), name.split(".")[-2].split("_")[0]
            experts = getattr(loaded.weights.layers[layer].feed_forward, projection)
            value = torch.stack([experts.dequantise(expert) for expert in range(shape[0])])
        result[name] = value.float()
    return result


def test_everything_together_is_small() -> None:
    assert sum(path.stat().st_size for path in NANO.iterdir()) <= LIMIT


def test_it_has_what_a_release_has_and_its_report() -> None:
    names = {path.name for path in NANO.iterdir()}
    expected = {
        "config.json", "hf_quant_config.json", "generation_config.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja", "model.safetensors.index.json",
        "model-extra-000.safetensors", "model-extra-001.safetensors", "REPORT.md", "curves.png",
    }  # fmt: skip
    expected |= {f"model-layer-{layer:03d}.safetensors" for layer in range(8)}
    assert names == expected
    assert (NANO / "chat_template.jinja").read_bytes() == TEMPLATE.read_bytes()


def test_training_and_inference_agree_on_it() -> None:
    checkpoint = Checkpoint.open(NANO)
    loaded = whole.Model(config=checkpoint.config, weights=checkpoint.load())
    model = Model(Dims(), shipped_parameters(loaded), torch.device("cpu"))
    ids = torch.tensor(TEXT)
    trained = model.trunk(ids[None], model.place(torch.zeros(1, len(ids)).long()), sparse=True)
    served = whole.logits(loaded, whole.residual(loaded, ids, torch.bfloat16), torch.bfloat16)
    difference = (served - trained.logits[0].float()).abs()
    assert float(difference.max()) <= TOLERANCE
    assert float(difference.mean()) <= MEAN_TOLERANCE
