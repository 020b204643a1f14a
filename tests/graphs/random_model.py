"""Random tiny models of other shapes than the golden one, made in memory.

Knows how to draw weights for a config in the JSON form. Keeps true: a vocabulary of a dozen tokens,
so that drafts are right by chance often enough for every acceptance to occur.
"""

from typing import Any

import torch
from torch import Tensor

from graphs.config import LayerConfig, ModelConfig
from graphs.config_json import parse_config
from graphs.formats import Bf16Experts, Nvfp4Experts
from graphs.weights import (
    AttentionWeights,
    DenseWeights,
    IndexerWeights,
    LayerWeights,
    ModelWeights,
    MoeWeights,
    MtpWeights,
)
from tests.graphs.whole import Model

FULL, SLIDING = "full_attention", "sliding_attention"

SHAPES: dict[str, dict[str, Any]] = {
    "one group, one MTP layer": {
        "layers": [SLIDING, FULL],
        "moe": [1],
        "mtp": 1,
        "heads": 3,
        "groups": 1,
        "head_dim": 16,
        "window": 5,
        "topk": 1,
        "experts": 3,
        "chosen": 1,
    },
    "four groups, NVFP4": {
        "layers": [FULL, SLIDING, FULL],
        "moe": [0, 2],
        "mtp": 3,
        "heads": 8,
        "groups": 4,
        "head_dim": 12,
        "window": 9,
        "topk": 2,
        "experts": 5,
        "chosen": 2,
        "nvfp4": True,
    },
    "window over a block, two MTP layers": {
        "layers": [SLIDING, SLIDING, FULL],
        "moe": [1],
        "mtp": 2,
        "heads": 4,
        "groups": 2,
        "head_dim": 8,
        "window": 70,
        "topk": 3,
        "experts": 4,
        "chosen": 4,
    },
}
VOCAB, HIDDEN, FEED = 12, 32, 48


def config_json(shape: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "step5",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED,
        "vocab_size": VOCAB,
        "num_hidden_layers": len(shape["layers"]),
        "layer_types": shape["layers"],
        "num_nextn_predict_layers": shape["mtp"],
        "num_attention_heads": shape["heads"],
        "num_attention_groups": shape["groups"],
        "head_dim": shape["head_dim"],
        "sliding_window": shape["window"],
        "max_position_embeddings": 4096,
        "moe_layer_list": shape["moe"],
        "moe_num_experts": shape["experts"],
        "moe_top_k": shape["chosen"],
        "moe_intermediate_size": 16,
        "share_expert_dim": 16,
        "moe_router_scaling_factor": 3.0,
        "rope_theta": 1e4,
        "fp32_residual_connection": True,
        "sparse_config": {
            "proxy_dim": 16,
            "num_heads": 2 * shape["groups"],
            "rope_dim": 8,
            "num_provider_groups": shape["groups"],
            "topk": shape["topk"],
            "region_block_size": 8,
        },
    }


class Draw:
    """Draws weights of one model from one generator."""

    def __init__(self, config: ModelConfig, seed: int, *, nvfp4: bool):
        self._config, self._nvfp4 = config, nvfp4
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int) -> Tensor:
        scale = 1.5 * shape[-1] ** -0.5
        return (torch.randn(*shape, generator=self._generator) * scale).bfloat16()

    def vector(self, size: int) -> Tensor:
        return torch.randn(size, generator=self._generator) * 0.1

    def experts(self, *shape: int) -> Bf16Experts | Nvfp4Experts:
        weight = self.matrix(*shape)
        return Nvfp4Experts.quantise(weight.float()) if self._nvfp4 else Bf16Experts(weight=weight)

    def indexer(self, layer: LayerConfig) -> IndexerWeights:
        sparse = self._config.sparse
        assert sparse is not None
        width = sparse.proxy_dim
        return IndexerWeights(
            q=self.matrix(sparse.heads * width, HIDDEN),
            k=self.matrix(width, HIDDEN),
            z=self.matrix(width, HIDDEN),
            w=self.matrix(sparse.heads, HIDDEN).float(),
            q_norm=self.vector(width),
            k_norm=1 + self.vector(width),
            k_norm_bias=self.vector(width),
            ssmax_s=torch.zeros(layer.heads),
        )

    def attention(self, layer: LayerConfig) -> AttentionWeights:
        width, kv_width = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        return AttentionWeights(
            q=self.matrix(width, HIDDEN),
            k=self.matrix(kv_width, HIDDEN),
            v=self.matrix(kv_width, HIDDEN),
            g=self.matrix(layer.heads, HIDDEN),
            o=self.matrix(HIDDEN, width),
            q_norm=self.vector(layer.head_dim),
            k_norm=self.vector(layer.head_dim),
            indexer=self.indexer(layer) if layer.attention == "full" else None,
        )

    def dense(self, width: int) -> DenseWeights:
        return DenseWeights(
            gate=self.matrix(width, HIDDEN),
            up=self.matrix(width, HIDDEN),
            down=self.matrix(HIDDEN, width),
        )

    def moe(self) -> MoeWeights:
        moe = self._config.moe
        assert moe is not None
        count, width = moe.experts, moe.expert_dim
        return MoeWeights(
            router=self.matrix(count, HIDDEN).float(),
            router_bias=self.vector(count),
            gate=self.experts(count, width, HIDDEN),
            up=self.experts(count, width, HIDDEN),
            down=self.experts(count, HIDDEN, width),
            shared=self.dense(moe.shared_dim),
        )

    def layer(self, layer: LayerConfig) -> LayerWeights:
        return LayerWeights(
            input_norm=self.vector(HIDDEN),
            post_norm=self.vector(HIDDEN),
            attention=self.attention(layer),
            feed_forward=self.moe() if layer.feed_forward == "moe" else self.dense(FEED),
        )

    def mtp(self, layer: LayerConfig) -> MtpWeights:
        return MtpWeights(
            eh_proj=self.matrix(HIDDEN, 2 * HIDDEN),
            embed_norm=self.vector(HIDDEN),
            hidden_norm=self.vector(HIDDEN),
            layer=self.layer(layer),
            head_norm=self.vector(HIDDEN),
            head=self.matrix(VOCAB, HIDDEN),
        )


def random_model(shape: str, seed: int = 0) -> Model:
    """The model of SHAPES[shape] with weights drawn from `seed`."""
    config = parse_config(config_json(SHAPES[shape]))
    draw = Draw(config, seed, nvfp4=SHAPES[shape].get("nvfp4", False))
    weights = ModelWeights(
        embed=embedding(draw),
        norm=draw.vector(HIDDEN),
        head=draw.matrix(VOCAB, HIDDEN),
        layers=tuple(draw.layer(layer) for layer in config.layers),
        mtp=tuple(draw.mtp(layer) for layer in config.mtp_layers),
    )
    return Model(config=config, weights=weights)


def embedding(draw: Draw) -> Tensor:
    """Embeddings of unit size, as a trained model has them."""
    return (draw.matrix(VOCAB, HIDDEN).float() * 4).bfloat16()
