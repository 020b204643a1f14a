"""inspect: groups that add up, what fits at which TP, the full-size checkpoint in little memory."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from graphs.checkpoint import Checkpoint
from graphs.errors import ConfigError
from graphs.inspect import GROUPS, Report, group_of, inspect_checkpoint
from graphs.inventory import text_tensors, vision_tensors
from graphs.sku import SKUS, Sku, StateCost, allowed_tp, check_tp, fit, state_cost, tp_obstacles
from server.cli_inspect import ranges, render, size
from tests.graphs import sparse_checkpoint, variants
from tests.graphs.variants import FORMATS, GOLDEN
from tests.sources import ROOT

GIB = 2**30

# Run alone, so that the peak is this work's and not the test session's.
PROBE = """
import json, re, sys, time
from pathlib import Path
from graphs.checkpoint import Checkpoint
from graphs.inspect import inspect_checkpoint
def peak():  # of this program; getrusage would count the session that started it
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", status)[1])
start = time.perf_counter()
checkpoint = Checkpoint.open(Path(sys.argv[1]))
report = inspect_checkpoint(checkpoint)
seconds = time.perf_counter() - start
inspected = peak()
layer = checkpoint.load_layer(5).feed_forward
value = layer.down.dequantise(351)
print(json.dumps({
    "seconds": seconds,
    "inspected": inspected,
    "loaded": peak(),
    "down": list(layer.down.weight.shape),
    "value": [*value.shape, float(value.abs().max())],
    "report": report.to_json(),
}))
"""


def report_on(folder: Path) -> Report:
    return inspect_checkpoint(Checkpoint.open(folder))


@pytest.fixture(scope="module")
def full_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sparse") / "nvfp4"
    total = sparse_checkpoint.write(folder, "nvfp4")
    assert round(total / 1e9, 1) == 394.2
    assert sum(path.stat().st_blocks * 512 for path in folder.iterdir()) < 5e6
    return folder


def test_full_size_inspect_and_one_layer_stay_small(full_size: Path) -> None:
    command = [sys.executable, "-c", PROBE, str(full_size)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    sys.stdout.write(
        f"inspect took {found['seconds']:.2f} s, peak {found['inspected'] / GIB:.2f} GiB\n"
    )
    assert found["inspected"] < GIB
    assert found["loaded"] < GIB
    assert found["down"] == [352, 4096, 768]
    assert found["value"] == [4096, 1536, 0.0]
    assert found["report"]["bytes"] == 394_164_831_232
    assert found["report"]["notes"] == []


def test_full_size_report(full_size: Path) -> None:
    report = report_on(full_size)
    assert (report.layers, len(report.full_layers), report.moe_layers) == (92, 23, 88)
    assert (report.experts, report.experts_per_token, report.mtp_layers) == (352, 8, 3)
    assert (report.context, report.vision, report.missing_mtp) == (1048576, True, ())
    # Architecture 3.10.
    tables = 2 * 2 * 8  # a column of two tables, the scratch row included
    assert report.state.per_block == 64 * (70656 + 736) + tables
    # 72 layers with 14 blocks in the circle and one of scratch each, and what is no cache.
    assert 72 * 15 * 64 * 3072 < report.state.per_sequence < 72 * 17 * 64 * 3072
    assert [option.tp for option in report.tp if not option.obstacles] == [1, 2, 4]
    # 584.6 G expert parameters; about 27 G active with the embedding row's table.
    experts = sum(g.parameters for g in report.groups if g.name == "routed experts")
    assert experts == 88 * 352 * 3 * 1536 * 4096
    assert 26e9 < report.active_parameters < 27e9
    fits = {(f.sku, f.tp): f.kv_tokens for f in report.fits}
    assert fits["H200", 4] > report.context
    assert fits["H200", 2] == fits["H100 80GB", 4] == 0
    assert fits["B300", 2] > 0


@pytest.mark.parametrize("experts", ["bf16", "nvfp4"])
def test_full_size_inventory_counts(tmp_path: Path, experts: sparse_checkpoint.Experts) -> None:
    sparse_checkpoint.write(tmp_path, experts)
    report = report_on(tmp_path)
    counts = {group.name: 0 for group in report.groups}
    for group in report.groups:
        counts[group.name] += group.tensors
    quantised = 3 * 3 * 85 if experts == "nvfp4" else 0
    assert report.tensors == 2449 + quantised
    assert counts["vision"] == 667
    assert counts["MTP layers"] == 51
    assert counts["indexer"] == 23 * 8
    # Without the unindexed copies that the release's files also hold.
    assert report.parameters == 602_972_927_296
    if experts == "bf16":
        config = Checkpoint.open(tmp_path).config
        assert config.vision is not None
        text = list(text_tensors(config))
        assert len(text) + 3 * 88 == 1782
        assert len(list(vision_tensors(config.vision, config.hidden_dim))) == 667


@pytest.mark.parametrize("source", FORMATS)
def test_groups_cover_every_tensor_once(source: str) -> None:
    report = report_on(GOLDEN / source)
    index = json.loads((GOLDEN / source / variants.INDEX).read_text())
    assert sum(group.tensors for group in report.groups) == len(index["weight_map"])
    assert report.bytes == index["metadata"]["total_size"]
    assert report.files == len(set(index["weight_map"].values()))
    assert {group.name for group in report.groups} == set(GROUPS)


def test_parameters_do_not_depend_on_the_format() -> None:
    counts = {report_on(GOLDEN / source).parameters for source in FORMATS}
    tensors = variants.read_all(GOLDEN / "bf16")
    assert counts == {sum(tensor.numel() for tensor in tensors.values())}


def test_formats_are_told_per_group_and_layer() -> None:
    groups = report_on(GOLDEN / "fp8").groups
    experts = {g.format: g.layers for g in groups if g.name == "routed experts"}
    assert experts == {"FP8 block packed": (1, 2, 3, 4, 5), "BF16 packed": (6,)}
    for source, label in (
        ("nvfp4-packed", "NVFP4 packed"),
        ("nvfp4-per-expert", "NVFP4 per expert"),
    ):
        found = [g for g in report_on(GOLDEN / source).groups if g.name == "routed experts"]
        assert [(g.format, g.layers) for g in found] == [(label, (1, 2, 3, 4, 5, 6))]


def test_group_of_names() -> None:
    config = Checkpoint.open(GOLDEN / "bf16").config
    names = {
        "model.embed_tokens.weight": "embedding",
        "model.norm.weight": "norms",
        "lm_head.weight": "output head",
        "model.layers.3.self_attn.q_proj.weight": "attention, full",
        "model.layers.2.self_attn.g_proj.weight": "attention, sliding",
        "model.layers.3.self_attn.sparse_indexer_k_norm.bias": "indexer",
        "model.layers.3.self_attn.ssmax_s": "indexer",
        "model.layers.3.self_attn.k_norm.weight": "norms",
        "model.layers.1.moe.gate.weight": "router",
        "model.layers.1.moe.router_bias": "router",
        "model.layers.1.moe.experts.3.up_proj.weight_scale": "routed experts",
        "model.layers.1.share_expert.up_proj.weight": "shared experts",
        "model.layers.0.mlp.up_proj.weight": "dense MLP",
        "model.layers.8.mlp.up_proj.weight": "MTP layers",
        "vision_model.ln_pre.bias": "vision",
    }
    assert {name: group_of(name, config) for name in names} == names


def test_missing_mtp_and_vision_are_told(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "variant", "bf16")
    gone = [n for n in variants.weight_map(folder) if n.startswith(("model.layers.10.", "vi"))]
    variants.drop(folder, *gone)
    report = report_on(folder)
    assert len(report.missing_mtp) == 17
    assert not report.vision
    assert "17 tensors missing" in rendered(report)


def test_b9_tp_that_cuts_a_head_or_a_block_is_refused_with_the_sizes() -> None:
    checkpoint = Checkpoint.open(GOLDEN / "nvfp4-packed")
    config, layouts = checkpoint.config, checkpoint.layouts
    assert allowed_tp(config, layouts) == (1, 2)
    check_tp(config, layouts, 2)
    words = r"TP 4.*2 KV groups.*8 a rank in blocks of 16 \(NVFP4\).*allowed: \(1, 2\)"
    with pytest.raises(ConfigError, match=words):
        check_tp(config, layouts, 4)
    with pytest.raises(ConfigError, match=r"TP 3.*allowed: \(1, 2\)"):
        check_tp(config, layouts, 3)


@pytest.mark.parametrize(
    ("source", "blocked"), [("bf16", False), ("fp8", True), ("nvfp4-packed", True)]
)
def test_b9_scale_blocks_limit_the_expert_width_of_a_rank(source: str, blocked: bool) -> None:
    """Expert width 32 over 4 ranks is 8 columns of down_proj, half a block of 16."""
    checkpoint = Checkpoint.open(GOLDEN / source)
    obstacles = tp_obstacles(checkpoint.config, checkpoint.layouts, 4)
    assert any("blocks of 16" in text for text in obstacles) == blocked


def test_b9_every_width_that_does_not_divide_is_named() -> None:
    config = Checkpoint.open(GOLDEN / "bf16").config
    assert config.moe is not None
    moe = dataclasses.replace(config.moe, expert_dim=33, shared_dim=35)
    odd = dataclasses.replace(config, moe=moe, dense_dim=97, vocab_size=385)
    found = " ".join(tp_obstacles(odd, {}, 2))
    for words in ("33 expert width", "35 shared expert width", "97 dense MLP", "385 vocabulary"):
        assert words in found


def test_state_splits_by_kv_heads_but_summaries_do_not() -> None:
    config = Checkpoint.open(GOLDEN / "bf16").config
    one, two = state_cost(config, 1), state_cost(config, 2)
    fixed = 64 * 2 * 32 // 8 + 2 * 2 * 8  # summaries, and a column of each table
    assert one.per_block == 64 * 2 * (2 * 2 * 24 * 2) + fixed
    assert two.per_block == 64 * 2 * (2 * 1 * 24 * 2) + fixed
    # 9 layers with a circle and a scratch block of 64 positions; history and sampling are whole.
    circle = 9 * (6 + 1) * 64 * (2 * 2 * 24 * 2)
    scratch = 64 * 2 * (2 * 2 * 24 * 2)
    assert one.per_sequence - two.per_sequence == (circle + scratch) // 2


def test_fit_is_what_is_left_beside_weights_and_windows() -> None:
    sku = Sku(name="small", memory=1_000_000)
    cost = StateCost(per_block=6400, per_sequence=20_000)
    assert fit(sku, 1, weights=800_000, cost=cost).kv_tokens == 1000_00 // 6400 * 64 - 4
    assert fit(sku, 1, weights=900_000, cost=cost).kv_tokens == 0


@pytest.mark.parametrize("source", FORMATS)
def test_report_as_json_and_as_text(source: str) -> None:
    report = report_on(GOLDEN / source)
    value = json.loads(json.dumps(report.to_json()))
    assert value["groups"][0]["name"] == "embedding"
    assert len(value["fits"]) == 2 * len(SKUS)
    text = rendered(report)
    for word in ("routed experts", "1,048,576", "H200", "TP 4 is not possible", "MTP"):
        assert word in text


def test_notes_are_shown(tmp_path: Path) -> None:
    folder = variants.copy(tmp_path / "variant", "nvfp4-packed")
    variants.edit_config(folder, lambda c: c["quantization_config"]["ignore"].append("nothing"))
    with pytest.warns(UserWarning, match="nothing"):
        report = report_on(folder)
    assert "note: exclude patterns that match no module: nothing" in rendered(report)


def rendered(report: Report) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render(report))
    return capture.get()


def test_ranges_and_sizes_read_well() -> None:
    assert ranges(()) == ""
    assert ranges((4,)) == "4"
    assert ranges((0, 1, 2, 91)) == "0-2, 91"
    assert ranges((3, 7, 11)) == "3-11 step 4"
    assert ranges(tuple(i for i in range(92) if i % 4 != 3)) == "69 of 0-90"
    assert [size(n) for n in (0, 999, 1000, 394_164_831_232)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "394.2 GB",
    ]
