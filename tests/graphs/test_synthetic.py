"""Synthetic checkpoints: what opens, what is random, and that tokens spread as in a real model."""

import warnings
from pathlib import Path

import pytest
import torch

from graphs.checkpoint import Checkpoint
from graphs.config import ModelConfig
from graphs.config_json import parse_config
from graphs.errors import ConfigError
from graphs.formats import Nvfp4Experts
from graphs.plan import EnginePlan
from graphs.shards import INDEX_FILE
from graphs.synthetic import SMALL, SyntheticDims, synthetic_config
from graphs.synthetic_weights import write_synthetic
from graphs.weights import MoeWeights
from runtime.bench.experts import ExpertCounter
from runtime.bench.forced import record
from runtime.engine import Engine
from tests.graphs.configs import release


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synthetic")
    write_synthetic(path, SMALL)
    return path


def test_a_folder_opens_without_a_warning(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint = Checkpoint.open(folder)
        weights = checkpoint.load()
    assert checkpoint.config.stop_ids == (1, 2)
    assert not checkpoint.missing_mtp
    assert len(weights.mtp) == 3
    experts = [layer.feed_forward for layer in weights.layers[3:7]]
    assert all(isinstance(e, MoeWeights) and isinstance(e.up, Nvfp4Experts) for e in experts)


def pattern(config: ModelConfig, last: int) -> list[tuple[str, str, int, int | None]]:
    """What distinguishes layers: the first eight, the last backbone ones, the MTP layers."""
    layers = (*config.layers[:8], *config.layers[-last:], *config.mtp_layers)
    return [(x.attention, x.feed_forward, x.rotary_dim, x.window) for x in layers]


def test_layers_alternate_as_in_the_release() -> None:
    assert pattern(synthetic_config(SyntheticDims()), 4) == pattern(parse_config(release()), 4)


def test_mtp_layers_are_sliding_at_any_depth() -> None:
    config = synthetic_config(SyntheticDims(**{**vars(SMALL), "layers": 6}))
    assert config.full_layers == (3,)


def test_a_seed_gives_the_same_bytes_and_another_seed_gives_others(
    folder: Path, tmp_path: Path
) -> None:
    write_synthetic(tmp_path / "same", SMALL)
    write_synthetic(tmp_path / "other", SMALL, seed=1)
    files = sorted(path.name for path in folder.iterdir())
    assert files == sorted(path.name for path in (tmp_path / "same").iterdir())
    for name in files:
        data = (folder / name).read_bytes()
        assert (tmp_path / "same" / name).read_bytes() == data
        if name.endswith(".safetensors"):
            assert (tmp_path / "other" / name).read_bytes() != data


def test_the_two_scales_of_a_block_multiply_to_one_that_e4m3_holds(folder: Path) -> None:
    for layer in Checkpoint.open(folder).load().layers[3:7]:
        assert isinstance(layer.feed_forward, MoeWeights)
        for stack in (layer.feed_forward.gate, layer.feed_forward.down):
            assert isinstance(stack, Nvfp4Experts)
            both = stack.scale.float() * stack.scale_2[:, None, None]
            assert torch.equal(both.to(torch.float8_e4m3fn).float(), both)
            assert len(both.unique()) == 4


def test_tokens_spread_over_vocabulary_and_experts(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    plan = EnginePlan(widths=(1,), batches=(1,), prefill=(16,))
    engine = Engine(checkpoint.config, checkpoint.load(), plan=plan, draft_tokens=0, context=128)
    with Choices() as seen:
        track = record(engine, range(3, 35), 64)
    assert len(set(track.tokens)) > 25, "random weights must not run in a small circle"
    share = torch.bincount(torch.cat(seen.ids), minlength=SMALL.experts).float()
    assert share.min() > 0.3 * share.mean()
    assert share.max() < 2.5 * share.mean()


class Choices(ExpertCounter):
    """Keeps the choices themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[torch.Tensor] = []

    def count(self, ids_TK: torch.Tensor) -> None:
        self.ids.append(ids_TK[ids_TK >= 0])


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"layers": 4}, "layers = 4"),
        ({"hidden": 72}, "hidden = 72"),
        ({"expert_dim": 24}, "expert_dim = 24"),
        ({"experts": 0}, "experts = 0"),
        ({"chosen": 9}, "moe_top_k = 9"),
        ({"index_rope": 64}, "rope_dim = 64"),
    ],
)
def test_dims_that_cannot_run_are_refused(changed: dict[str, int], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        synthetic_config(SyntheticDims(**{**vars(SMALL), **changed}))


def test_an_interrupted_folder_does_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_synthetic(tmp_path, SMALL)

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graphs.synthetic_weights.save_file", stop)
    with pytest.raises(KeyboardInterrupt):
        write_synthetic(tmp_path, SMALL, seed=1)
    assert not (tmp_path / INDEX_FILE).exists()
