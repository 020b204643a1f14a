"""The comparison's own parts: the file llama.cpp reads, the model transformers runs, the ratios.

Neither program is timed here; llama.cpp is not even built.
"""

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from graphs.checkpoint import Checkpoint
from graphs.formats import Nvfp4Experts
from graphs.synthetic import SMALL
from graphs.synthetic_weights import write_synthetic
from graphs.weights import MoeWeights
from tests.bench.child import Child
from tests.bench.peers import gguf_file, section
from tests.bench.peers.eager_transformers import Eager
from tests.bench.peers.scenario import PREFIX, prompt
from tests.bench.peers.step35 import pack_nvfp4, write_step35
from tests.graphs.whole import Model, logits, residual
from tests.sources import ROOT

FORMATS = {4: "<I", 5: "<i", 6: "<f", 7: "<?"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic(folder, SMALL)
    return Checkpoint.open(folder)


class Reader:
    """Reads a GGUF file back, written from its specification alone."""

    def __init__(self, path: Path):
        self.data, self.at = path.read_bytes(), 0
        assert self.take("<4s") == b"GGUF"
        assert self.take("<I") == 3
        tensors, keys = self.take("<Q"), self.take("<Q")
        self.metadata = {self.string(): self.value(self.take("<I")) for _ in range(keys)}
        described = [self.description() for _ in range(tensors)]
        start = -(-self.at // 32) * 32
        self.tensors = {n: (kind, dims, start + offset) for n, kind, dims, offset in described}

    def take(self, form: str) -> Any:
        [value] = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self) -> str:
        return self.take(f"<{self.take('<Q')}s").decode()

    def value(self, kind: int) -> Any:
        if kind == 9:
            inner, count = self.take("<I"), self.take("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.string() if kind == 8 else self.take(FORMATS[kind])

    def description(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self.string()
        dims = tuple(self.take("<Q") for _ in range(self.take("<I")))
        return name, self.take("<I"), dims, self.take("<Q")

    def array(self, name: str, dtype: Any) -> np.ndarray[Any, Any]:
        _, dims, offset = self.tensors[name]
        count = int(np.prod(dims))
        return np.frombuffer(self.data, dtype, count, offset).reshape(tuple(reversed(dims)))


def test_the_gguf_file_holds_every_tensor_once_under_its_name(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    write_step35(checkpoint, tmp_path / "model.gguf")
    read = Reader(tmp_path / "model.gguf")
    weights = checkpoint.load()
    assert read.metadata["general.architecture"] == "step35"
    assert read.metadata["step35.block_count"] == 11
    assert read.metadata["step35.nextn_predict_layers"] == 3
    assert read.metadata["step35.attention.sliding_window_pattern"] == (
        [True, True, True, False] * 2 + [True] * 3
    )
    assert read.metadata["step35.rope.dimension_count"] == 16
    assert len(read.metadata["tokenizer.ggml.tokens"]) == SMALL.vocab
    kind, dims, _ = read.tensors["blk.9.nextn.shared_head_head.weight"]
    assert (kind, dims) == (gguf_file.BF16, (SMALL.hidden, SMALL.vocab))
    head = read.array("blk.9.nextn.shared_head_head.weight", np.int16)
    assert np.array_equal(head, weights.mtp[1].head.view(torch.int16).numpy())
    norm = read.array("blk.3.attn_norm.weight", np.float32)
    assert np.array_equal(norm, weights.layers[3].input_norm.numpy() + 1)
    assert read.tensors["blk.4.ffn_up_exps.weight"][:2] == (
        *(gguf_file.NVFP4, (SMALL.hidden, SMALL.expert_dim, SMALL.experts)),
    )
    # Everything but the indexer; scales travel inside the experts' blocks.
    stored = {place.stored for place in checkpoint.tensors.values()}
    left = [n for n in stored if "sparse_indexer" in n or "ssmax" in n]
    scales = [n for n in stored if n.endswith(("weight_scale", "weight_scale_2", "input_scale"))]
    assert len(read.tensors) == len(stored) - len(left) - len(scales)


def test_nvfp4_blocks_hold_the_same_values(checkpoint: Checkpoint) -> None:
    ffn = checkpoint.load_layer(3).feed_forward
    assert isinstance(ffn, MoeWeights)
    assert isinstance(ffn.down, Nvfp4Experts)
    packed = pack_nvfp4(ffn.down)[2].reshape(SMALL.hidden, -1, 36)
    scales = packed[..., :4].contiguous().view(torch.float8_e4m3fn).float()
    codes = packed[..., 4:].unflatten(-1, (4, 8))
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([magnitudes, -magnitudes])[torch.cat([codes & 15, codes >> 4], -1).long()]
    assert torch.equal(
        (values * scales[..., None]).reshape(SMALL.hidden, -1), ffn.down.dequantise(2)
    )


def test_scales_that_one_number_cannot_hold_are_refused(checkpoint: Checkpoint) -> None:
    ffn = checkpoint.load_layer(3).feed_forward
    assert isinstance(ffn, MoeWeights)
    assert isinstance(ffn.up, Nvfp4Experts)
    odd = Nvfp4Experts(weight=ffn.up.weight, scale=ffn.up.scale, scale_2=ffn.up.scale_2 * 1.01)
    with pytest.raises(ValueError, match="not an e4m3 value"):
        pack_nvfp4(odd)


def test_data_begins_where_its_description_says(tmp_path: Path) -> None:
    values = {"a": torch.arange(5.0), "b": torch.arange(7.0), "c": torch.tensor([3.5])}
    tensors = [
        gguf_file.GgufTensor(
            name=name, kind=gguf_file.F32, shape=tuple(value.shape), data=lambda v=value: v
        )
        for name, value in values.items()
    ]
    gguf_file.write_gguf(tmp_path / "x", {"k": "v"}, tensors)
    read = Reader(tmp_path / "x")
    for name, value in values.items():
        assert np.array_equal(read.array(name, np.float32), value.numpy())
        assert read.tensors[name][2] % gguf_file.ALIGNMENT == 0


def test_a_tensor_of_another_size_than_described_is_refused(tmp_path: Path) -> None:
    tensor = gguf_file.GgufTensor(
        name="a", kind=gguf_file.F32, shape=(2, 3), data=lambda: torch.zeros(5)
    )
    with pytest.raises(ValueError, match="a: 20 bytes, not 24"):
        gguf_file.write_gguf(tmp_path / "x", {}, [tensor])


def test_transformers_runs_the_same_model(checkpoint: Checkpoint) -> None:
    weights = checkpoint.load()
    eager = Eager(checkpoint.config, weights)
    eager.model.float()
    eager.head = eager.head.float()
    # Up to here every region is attended to, as that program's dense attention does.
    ids = torch.randint(SMALL.vocab, (40,), generator=torch.Generator().manual_seed(1))
    model = Model(config=checkpoint.config, weights=weights)
    expected = logits(model, residual(model, ids))
    cache = DynamicCache(config=eager.text)
    assert torch.allclose(eager.logits(ids[:39].tolist(), cache), expected[38], atol=2e-4)
    assert torch.allclose(eager.logits(ids[39:].tolist(), cache), expected[39], atol=2e-4)


def test_a_child_answers_until_it_ends_and_says_why(tmp_path: Path) -> None:
    source = (
        "from tests.bench.child import serve\n"
        "answers = iter([1.5, 2.5])\n"
        "def measure():\n"
        "    print('noise')\n"
        "    return {'speed': next(answers)}\n"
        "serve(measure)\n"
    )
    command = [sys.executable, "-c", source]
    with Child(command, cwd=ROOT, log=tmp_path / "log") as child:
        assert child.ask() == {"speed": 1.5}
        assert child.ask() == {"speed": 2.5}
        with pytest.raises(RuntimeError, match="StopIteration"):
            child.ask()
    assert "noise" in (tmp_path / "log").read_text()


def test_ratios_are_of_the_same_round() -> None:
    ours = section.Contender(
        name=section.OURS,
        speeds={"decode": [10.0, 40.0, 10.0], "mtp": [30.0] * 3, "prefill": [6.0] * 3},
    )
    llama = section.Contender(
        name=section.LLAMA, speeds={"decode": [5.0, 10.0, 2.0], "mtp": [10.0] * 3}
    )
    for _ in range(3):
        llama.add({"prefill": 3.0})
    other = section.Contender(
        name=section.TRANSFORMERS, speeds={"decode": [1.0, 1.0, 1.0], "prefill": [1.0] * 3}
    )
    made = section.section([ours, llama, other], [2e10, 3e10])
    assert made.numbers["plain_over_llama"] == 4.0
    assert made.numbers["mtp_over_llama"] == 3.0
    assert made.numbers["prefill_over_llama"] == 2.0
    assert made.numbers["plain_over_transformers"] == 10.0
    speeds, compared = made.tables
    assert speeds.rows[2][2] == "", "transformers has no MTP here"
    assert compared.rows[0][1] == "4.00 (2.00 to 5.00)"


def test_the_prompt_is_the_same_everywhere_and_avoids_control_tokens() -> None:
    assert prompt(8192) == prompt(8192)
    assert len(prompt(8192)) == PREFIX
    assert min(prompt(8192)) >= 300
    assert max(prompt(8192)) < 8192
    assert max(prompt(100)) < 100
