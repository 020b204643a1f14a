"""A checkpoint folder: opened by its index, checked whole, then loaded into weight dataclasses.

Knows how config, index, inventory and expert layouts fit together. Does not know model maths. Keeps
true: opening reads headers only and refuses what is not exactly the model config.json describes;
each expected tensor is filled once, from the one place the index gives; loaded tensors are views of
the mapped files except per-expert stacks and widened vectors. Architecture 2.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from graphs.config import LayerConfig, ModelConfig, QuantConfig
from graphs.config_json import load_config, parse_quant
from graphs.config_keys import Keys, read_json
from graphs.errors import CheckpointError
from graphs.exclude import exclude_notes
from graphs.inventory import (
    Expected,
    attention_tensors,
    dense_tensors,
    global_tensors,
    indexer_tensors,
    mtp_tensors,
    norm_tensors,
    router_tensors,
    text_tensors,
    vision_tensors,
)
from graphs.layouts import Bf16Layout, Layout, Stack, detect, stacks
from graphs.names import canonical, is_vision, layer_index
from graphs.shards import Entry, Shard, listed, open_shards, read_index
from graphs.weights import (
    AttentionWeights,
    DenseWeights,
    IndexerWeights,
    LayerWeights,
    ModelWeights,
    MoeWeights,
    MtpWeights,
)


@dataclass(frozen=True, kw_only=True)
class Located:
    """Where the index places a tensor: `stored` is its name in the shard."""

    stored: str
    shard: Shard

    @property
    def entry(self) -> Entry:
        return self.shard.entries[self.stored]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An opened checkpoint: everything checked, nothing read but headers.

    `tensors` maps canonical names to places, `layouts` routed-expert modules to their format;
    `missing_mtp` names the MTP tensors the index lacks; `notes` are the warnings of opening.
    """

    folder: Path
    config: ModelConfig
    tensors: Mapping[str, Located]
    layouts: Mapping[str, Layout]
    missing_mtp: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path, *, ssmax: bool = False) -> "Checkpoint":
        """Open and check FOLDER. Raises ConfigError or CheckpointError with the names at fault."""
        config = load_config(folder, ssmax=ssmax)
        quant = _claims(folder, config)
        tensors = _locate(folder)
        block = quant.block_size if quant else None
        dtypes = {name: place.entry.dtype for name, place in tensors.items()}
        found = {stack: detect(stack, dtypes, block) for stack in _all_stacks(config)}
        missing_mtp = _check_text(config, found, tensors)
        layouts = {stack.module: layout for stack, layout in found.items()}
        notes = _vision_notes(config, tensors) + _quant_notes(quant, layouts, tensors)
        for note in notes:
            warnings.warn(f"{folder}: {note}", stacklevel=2)
        return cls(
            folder=folder,
            config=config,
            tensors=tensors,
            layouts=layouts,
            missing_mtp=missing_mtp,
            notes=tuple(notes),
        )

    def load(self, *, mtp: bool = True) -> ModelWeights:
        """All text weights. Missing MTP tensors are an error unless `mtp` is False."""
        if mtp:
            self._require_mtp()
        top = self._fill(global_tensors(self.config))
        layers = tuple(self.load_layer(layer.index) for layer in self.config.layers)
        depths = range(len(self.config.mtp_layers)) if mtp else ()
        return ModelWeights(
            **top, layers=layers, mtp=tuple(self.load_mtp(depth) for depth in depths)
        )

    def load_layer(self, index: int) -> LayerWeights:
        """Backbone layer `index` alone; nothing of the other layers is read."""
        return self._layer(self.config.layers[index])

    def load_mtp(self, depth: int) -> MtpWeights:
        """The MTP layer of one depth, with its own head."""
        self._require_mtp()
        layer = self.config.mtp_layers[depth]
        return MtpWeights(**self._fill(mtp_tensors(self.config, layer)), layer=self._layer(layer))

    def _layer(self, layer: LayerConfig) -> LayerWeights:
        norms = self._fill(norm_tensors(self.config, layer))
        dense = DenseWeights(**self._fill(dense_tensors(self.config, layer)))
        moe = layer.feed_forward == "moe"
        return LayerWeights(
            **norms,
            attention=self._attention(layer),
            feed_forward=self._moe(layer, dense) if moe else dense,
        )

    def _attention(self, layer: LayerConfig) -> AttentionWeights:
        indexer = self._fill(indexer_tensors(self.config, layer))
        return AttentionWeights(
            **self._fill(attention_tensors(self.config, layer)),
            indexer=IndexerWeights(**indexer) if indexer else None,
        )

    def _moe(self, layer: LayerConfig, shared: DenseWeights) -> MoeWeights:
        gate, up, down = (
            self.layouts[stack.module].load(stack, self._read)
            for stack in stacks(self.config, layer)
        )
        router = self._fill(router_tensors(self.config, layer))
        return MoeWeights(**router, gate=gate, up=up, down=down, shared=shared)

    def _fill(self, expected: Mapping[str, Expected]) -> dict[str, Tensor]:
        """Field -> tensor; what the release stores in F32 is float32 (widening BF16 is exact)."""
        filled = {}
        for field, tensor in expected.items():
            value = self._read(tensor.name)
            filled[field] = value.to(torch.float32) if tensor.wide else value
        return filled

    def _read(self, name: str) -> Tensor:
        place = self.tensors[name]
        return place.shard.tensor(place.stored)

    def _require_mtp(self) -> None:
        if not self.missing_mtp:
            return
        lengths = ", ".join(f"{k} {n}" for k, n in _array_lengths(self.folder).items())
        raise CheckpointError(
            f"{self.folder}: config.json announces {len(self.config.mtp_layers)} MTP layers after "
            f"{len(self.config.layers)} backbone layers, but the index lacks "
            f"{len(self.missing_mtp)} of their tensors: {listed(self.missing_mtp, 100)}. Per-layer "
            f"arrays in config.json: {lengths or 'none'}. Only plain decoding is possible, and has "
            "to be asked for"
        )


def _claims(folder: Path, config: ModelConfig) -> QuantConfig | None:
    """What config.json and hf_quant_config.json together say about quantisation."""
    path = folder / "hf_quant_config.json"
    keys = Keys(read_json(path), path.name) if path.is_file() else None
    extra = parse_quant(keys) if keys else None
    if keys and (unknown := keys.unread()):
        warnings.warn(f"{path}: unknown keys ignored: {', '.join(unknown)}", stacklevel=3)
    if extra is None or config.quant is None:
        return config.quant or extra
    exclude = dict.fromkeys((*config.quant.exclude, *extra.exclude))
    return QuantConfig(
        method=config.quant.method,
        algo=config.quant.algo or extra.algo,
        group_size=config.quant.group_size or extra.group_size,
        block_size=config.quant.block_size or extra.block_size,
        exclude=tuple(exclude),
    )


def _locate(folder: Path) -> dict[str, Located]:
    """Canonical name -> place. Two index entries for one tensor are refused."""
    index = read_index(folder)
    shards = open_shards(folder, index)
    tensors: dict[str, Located] = {}
    for stored, file in index.items():
        name = canonical(stored)
        if name in tensors:
            raise CheckpointError(
                f"{folder}: {tensors[name].stored!r} and {stored!r} are the same tensor"
            )
        tensors[name] = Located(stored=stored, shard=shards[file])
    return tensors


def _all_stacks(config: ModelConfig) -> Iterator[Stack]:
    for layer in (*config.layers, *config.mtp_layers):
        yield from stacks(config, layer)


def _check_text(
    config: ModelConfig, found: Mapping[Stack, Layout], tensors: Mapping[str, Located]
) -> tuple[str, ...]:
    """Every text tensor present, right in shape and dtype, and none left over.

    Returns the missing MTP tensors, which only loading the MTP layers turns into an error.
    """
    expected = list(text_tensors(config))
    for stack, layout in found.items():
        expected.extend(layout.expected(stack))
    missing = [e.name for e in expected if e.required and e.name not in tensors]
    body = [name for name in missing if (layer_index(name) or 0) < len(config.layers)]
    if body:
        raise CheckpointError(f"missing tensors: {listed(body)}")
    wrong = [problem for e in expected if (problem := _mismatch(e, tensors.get(e.name)))]
    if wrong:
        raise CheckpointError("; ".join(wrong[:10]))
    known = {e.name for e in expected}
    unknown = [p.stored for n, p in tensors.items() if n not in known and not is_vision(n)]
    if unknown:
        raise CheckpointError(f"tensors that this model does not have: {listed(unknown)}")
    return tuple(missing)


def _mismatch(expected: Expected, place: Located | None) -> str | None:
    if place is None:
        return None
    entry = place.entry
    if entry.shape in expected.shapes and entry.dtype in expected.dtypes:
        return None
    shapes = " or ".join(str(list(shape)) for shape in expected.shapes)
    return (
        f"{place.stored} in {place.shard.path.name} is {entry.dtype} {list(entry.shape)}, expected "
        f"{' or '.join(expected.dtypes)} {shapes}"
    )


def _vision_notes(config: ModelConfig, tensors: Mapping[str, Located]) -> list[str]:
    """The vision tower is not run yet, so a damaged one is reported and does not stop text."""
    present = {name for name in tensors if is_vision(name)}
    if not present:
        return []
    if config.vision is None:
        return [f"{len(present)} vision tensors, but config.json has no vision_config"]
    expected = {e.name: e for e in vision_tensors(config.vision, config.hidden_dim)}
    notes = []
    if missing := sorted(expected.keys() - present):
        notes.append(f"missing vision tensors: {listed(missing, 8)}")
    if unknown := sorted(present - expected.keys()):
        notes.append(f"unknown vision tensors: {listed(unknown, 8)}")
    wrong = [p for e in expected.values() if (p := _mismatch(e, tensors.get(e.name)))]
    return notes + wrong[:8]


def _quant_notes(
    quant: QuantConfig | None, layouts: Mapping[str, Layout], tensors: Mapping[str, Located]
) -> list[str]:
    formats: dict[str, str | None] = {
        name.rpartition(".")[0]: None for name in tensors if ".moe.experts." not in name
    }
    for module, layout in layouts.items():
        formats[module] = None if isinstance(layout, Bf16Layout) else layout.label
    patterns = quant.exclude if quant else ()
    return exclude_notes(patterns, formats, claimed=quant is not None)


def _array_lengths(folder: Path) -> dict[str, int]:
    """Lengths of the list-valued keys of config.json, where a cut to the backbone shows."""
    config = read_json(folder / "config.json")
    text = config.get("text_config") or config
    keys = ("layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits")
    names = (*keys, "swiglu_limits_shared", "layer_types_with_mtp")
    return {key: len(text[key]) for key in names if isinstance(text.get(key), list)}
