"""transformers' step3p7 on the same weights: `python -m tests.bench.peers.eager_transformers DIR`.

Its text model in bfloat16 with eager attention, dense on every full layer; NVFP4 experts are
dequantised, which bfloat16 holds exactly. No MTP: that program chains other states than this
family's. Keeps true: every parameter comes from the checkpoint, and none is left over.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7RotaryEmbedding, Step3p7TextModel

from graphs.checkpoint import Checkpoint
from graphs.config import ModelConfig
from graphs.formats import ExpertMatrix
from graphs.weights import DenseWeights, LayerWeights, ModelWeights
from tests.bench.child import serve
from tests.bench.peers.scenario import THREADS, prompt

TOKENS = 8  # it is slow; a few tell enough
KINDS = {"moe": "sparse", "dense": "dense"}


class Eager:
    """The other program with its cache."""

    def __init__(self, config: ModelConfig, weights: ModelWeights):
        text = text_config(config)
        with torch.device("meta"):
            self.model = Step3p7TextModel(text)
        self.model.load_state_dict(dict(parameters(weights)), assign=True)
        # Its tables are no parameters, so they were left on the meta device.
        self.model.rotary_emb = Step3p7RotaryEmbedding(config=text)
        self.model.eval()
        self.head, self.text = weights.head, text

    @torch.inference_mode()
    def logits(self, ids: list[int], cache: DynamicCache) -> Tensor:
        """Of the last token, [V]; the cache grows by all of them."""
        any_model: Any = self.model  # its annotations say less than it accepts
        hidden = any_model(torch.tensor([ids]), cache=cache, use_cache=True).last_hidden_state
        return torch.nn.functional.linear(hidden[0, -1], self.head)


def text_config(config: ModelConfig) -> Any:
    """The backbone in that program's words."""
    moe = config.moe
    assert moe is not None
    layers = config.layers
    windows = {layer.window for layer in layers if layer.window is not None}
    keys: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.dense_dim,
        "num_hidden_layers": len(layers),
        "num_attention_heads": layers[0].heads,
        "num_key_value_heads": layers[0].kv_heads,
        "head_dim": layers[0].head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_eps,
        "pad_token_id": 0,
        "n_routed_experts": moe.experts,
        "num_experts_per_tok": moe.topk,
        "moe_intermediate_size": moe.expert_dim,
        "share_expert_dim": moe.shared_dim,
        "moe_router_scaling_factor": moe.routed_scale,
        "sliding_window": windows.pop(),
        "layer_types": [f"{layer.attention}_attention" for layer in layers],
        "mlp_layer_types": [
            "sparse" if layer.feed_forward == "moe" else "dense" for layer in layers
        ],
        "swiglu_limits": [layer.routed_limit for layer in layers],
        "swiglu_limits_shared": [layer.shared_limit for layer in layers],
        "rope_theta": [layer.rope_theta for layer in layers],
        "partial_rotary_factors": [layer.rotary_dim / layer.head_dim for layer in layers],
    }
    text: Any = Step3p7TextConfig(**keys)
    text._attn_implementation = "eager"
    return text


def parameters(weights: ModelWeights) -> Iterator[tuple[str, Tensor]]:
    """Its names of the backbone's tensors; vectors and the router stay in float32."""
    yield "embed_tokens.weight", weights.embed
    yield "norm.weight", weights.norm
    for index, layer in enumerate(weights.layers):
        for name, tensor in layer_parameters(layer):
            yield f"layers.{index}.{name}", tensor


def layer_parameters(layer: LayerWeights) -> Iterator[tuple[str, Tensor]]:
    yield "input_layernorm.weight", layer.input_norm
    yield "post_attention_layernorm.weight", layer.post_norm
    for name in ("q", "k", "v", "g", "o"):
        yield f"self_attn.{name}_proj.weight", getattr(layer.attention, name)
    yield "self_attn.q_norm.weight", layer.attention.q_norm
    yield "self_attn.k_norm.weight", layer.attention.k_norm
    ffn = layer.feed_forward
    if isinstance(ffn, DenseWeights):
        yield from mlp_parameters("mlp", ffn)
        return
    yield "mlp.gate.weight", ffn.router
    yield "mlp.gate.e_score_correction_bias", ffn.router_bias
    pairs = zip(plain(ffn.gate), plain(ffn.up), strict=True)
    both = [torch.cat(pair) for pair in pairs]
    yield "mlp.experts.gate_up_proj", torch.stack(both)
    yield "mlp.experts.down_proj", torch.stack(list(plain(ffn.down)))
    yield from mlp_parameters("mlp.shared_experts", ffn.shared)


def mlp_parameters(prefix: str, weights: DenseWeights) -> Iterator[tuple[str, Tensor]]:
    for name in ("gate", "up", "down"):
        yield f"{prefix}.{name}_proj.weight", getattr(weights, name)


def plain(stack: ExpertMatrix) -> Iterator[Tensor]:
    for expert in range(stack.experts):
        yield stack.dequantise(expert).bfloat16()


def measure(eager: Eager, ids: list[int]) -> dict[str, float]:
    """Rows a second of the prompt and tokens a second after it, greedy."""
    cache = DynamicCache(config=eager.text)
    start = time.perf_counter()
    token = int(eager.logits(ids, cache).argmax())
    prefilled = time.perf_counter()
    for _ in range(TOKENS):
        token = int(eager.logits([token], cache).argmax())
    end = time.perf_counter()
    return {"prefill": len(ids) / (prefilled - start), "decode": TOKENS / (end - prefilled)}


def main() -> None:
    torch.set_num_threads(THREADS)
    checkpoint = Checkpoint.open(Path(sys.argv[1]))
    eager = Eager(checkpoint.config, checkpoint.load(mtp=False))
    ids = prompt(checkpoint.config.vocab_size)
    serve(lambda: measure(eager, ids))


if __name__ == "__main__":
    main()
