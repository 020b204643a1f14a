"""Random weights of a synthetic model, written as a checkpoint folder.

Knows the release's names, shards and formats: routed experts in packed NVFP4, the rest BF16 and
F32; no tokenizer. Keeps true: one seed gives one folder, byte for byte; activations stay finite and
tokens spread over the experts, so that a step reads what a real one would; a block scale times
scale_2 is an e4m3 value again, so a format with one scale a block holds the same weights exactly.
"""

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from graphs.config import LayerConfig, ModelConfig
from graphs.inventory import Expected, global_tensors, layer_tensors, mtp_tensors
from graphs.layouts import Nvfp4Layout, stacks
from graphs.shards import INDEX_FILE
from graphs.synthetic import STOP_IDS, SyntheticDims, config_json, synthetic_config

# Deviation of a matrix's outputs for inputs of size 1; heads give logits with a clear maximum.
GAINS = {"lm_head": 3.0, "output": 3.0}
NORM_SPREAD = 0.05
SSMAX = 0.08495759963989258  # the release's constant; unused
# e4m3 codes of the block scales: 1, 1.25, 1.5, 1.75 times 2**STORED_OCTAVE.
FIRST_SCALE, SCALE_STEP, SCALES, STORED_OCTAVE = 80, 2, 4, 3
UNIT_RMS = 4.1  # of uniform e2m1 codes times scales of octave 0
LEAST_OCTAVE = -7  # below it the product of both scales would not be an e4m3 value


def write_synthetic(folder: Path, dims: SyntheticDims, *, seed: int = 0) -> ModelConfig:
    """Write config, index and shards into FOLDER, made if need be; return what they describe.

    The index comes last, so a folder whose writing was interrupted does not open. Raises
    ConfigError for dims that cannot run.
    """
    config = synthetic_config(dims)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX_FILE).unlink(missing_ok=True)
    _write_json(folder / "config.json", config_json(dims))
    _write_json(folder / "generation_config.json", {"eos_token_id": list(STOP_IDS)})
    index: dict[str, str] = {}
    size = 0
    for name, expected in _shards(config):
        tensors = {e.name: _draw(e, seed, config) for e in expected}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, name)
        size += sum(tensor.nbytes for tensor in tensors.values())
    metadata = {"total_size": size}
    _write_json(folder / INDEX_FILE, {"metadata": metadata, "weight_map": index})
    return config


def _shards(config: ModelConfig) -> Iterator[tuple[str, list[Expected]]]:
    """(file name, tensors): one file a backbone layer; the rest as the release has it."""
    for layer in config.layers:
        experts = [
            tensor
            for stack in stacks(config, layer)
            for tensor in Nvfp4Layout(per_expert=False).expected(stack)
        ]
        name = f"model-layer-{layer.index:03}.safetensors"
        yield name, [*layer_tensors(config, layer), *experts]
    first, last = config.mtp_layers[:-1], config.mtp_layers[-1:]
    shared = list(global_tensors(config).values())
    yield "model-extra-000.safetensors", shared + [e for x in first for e in _mtp(config, x)]
    if last:
        yield "model-extra-001.safetensors", list(_mtp(config, last[0]))


def _mtp(config: ModelConfig, layer: LayerConfig) -> Iterator[Expected]:
    yield from layer_tensors(config, layer)
    yield from mtp_tensors(config, layer).values()


def _draw(expected: Expected, seed: int, config: ModelConfig) -> Tensor:
    """One tensor, from the seed, its name and its shape alone."""
    shape = expected.shapes[0]
    generator = torch.Generator().manual_seed(zlib.crc32(expected.name.encode(), seed))
    path, _, kind = expected.name.removesuffix(".weight").rpartition(".")
    if kind == "weight_scale":
        codes = _bytes(shape, generator) % SCALES * SCALE_STEP + FIRST_SCALE
        return codes.view(torch.float8_e4m3fn)
    if kind == "weight_scale_2":
        return torch.full(shape, _scale_2(path, config))
    if kind == "input_scale":
        return torch.ones(shape)
    if kind == "ssmax_s":
        return torch.full(shape, SSMAX)
    if expected.dtypes == ("U8",):
        return _bytes(shape, generator)
    values = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        # Norm weights are stored less one, except the indexer's LayerNorm.
        offset = float(expected.name.endswith("sparse_indexer_k_norm.weight"))
        return values.mul_(NORM_SPREAD).add_(offset)
    values.mul_(1.0 if kind == "embed_tokens" else GAINS.get(kind, 1.0) * shape[-1] ** -0.5)
    # The release stores the router in BF16, though it is used in float32.
    stored_wide = expected.wide and kind != "gate"
    return values if stored_wide else values.bfloat16()


def _bytes(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform bytes, drawn eight at a time."""
    count = math.prod(shape)
    words = torch.empty(-(-count // 8), dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    return words.view(torch.uint8)[:count].view(shape)


def _scale_2(projection: str, config: ModelConfig) -> float:
    """The power of two that gives a projection's experts a gain of about 1."""
    assert config.moe is not None
    down = projection.endswith("down_proj")
    in_dim = config.moe.expert_dim if down else config.hidden_dim
    octave = round(math.log2(in_dim**-0.5 / UNIT_RMS))
    return 2.0 ** (max(octave, LEAST_OCTAVE) - STORED_OCTAVE)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
