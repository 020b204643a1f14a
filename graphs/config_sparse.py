"""sparse_config: the region-sparse attention of the full layers, prefixed or bare keys.

Knows the section's spellings and what can be run. Keeps true: a SparseConfig fits the layers it is
for. Architecture section 1.3.
"""

from typing import Any

from graphs.config import LayerConfig, SparseConfig
from graphs.config_keys import MISSING, Keys, integer
from graphs.errors import ConfigError

SPARSE_NAMES = ("sparse_config", "step4_sparse_config")


def parse_sparse(text: Keys, layers: tuple[LayerConfig, ...]) -> SparseConfig | None:
    """sparse_config in prefixed or bare spelling; None runs the full layers dense (the
    relatives)."""
    for name in ("step5_sparse_config", "step3p5_sparse_config"):
        if text.take(name, default=None) is not None:
            raise ConfigError(f"{name} = {{...}}: the section is called sparse_config")
    sections = [s for s in map(text.section, SPARSE_NAMES) if s is not None]
    if not sections:
        return None
    keys = sections[0]
    if not keys.flag("enabled", default=True):
        keys.ignore_rest()
        return None

    def take(name: str, default: Any = MISSING) -> Any:
        return keys.take(f"sparse_indexer_{name}", name, default=default)

    def only(name: str, value: Any) -> None:
        keys.only(f"sparse_indexer_{name}", value)
        keys.only(name, value)

    for name, value in (
        *(("num_k_heads", 1), ("use_rope", True), ("q_norm_type", "rmsnorm")),
        *(("k_norm_type", "layernorm"), ("csa_z_norm_type", "none")),
    ):
        only(name, value)
    keys.only("compression_method", "csa_block_compress")
    keys.only("attention_impl", "sparse_gqa")
    keys.only("apply_to_layer_types", ["full_attention"])
    # Metadata of the unused ssmax_s tensor (architecture 3.6).
    keys.ignore("sparse_indexer_softmax_variant", "softmax_variant")
    keys.ignore("sparse_indexer_ssmax_s_granularity", "ssmax_s_granularity")
    sparse = SparseConfig(
        proxy_dim=integer(keys.take("proxy_dim"), "sparse_config.proxy_dim", least=2),
        heads=integer(take("num_heads"), "sparse_config.num_heads", least=1),
        groups=integer(
            keys.take("num_provider_groups", "index_tp_size"), "num_provider_groups", least=1
        ),
        rope_dim=integer(take("rope_dim"), "sparse_config.rope_dim", least=2),
        topk=integer(keys.take("topk"), "sparse_config.topk", least=1),
        region=integer(keys.take("region_block_size"), "sparse_config.region_block_size", least=1),
    )
    _check_sparse(sparse, layers)
    return sparse


def _check_sparse(sparse: SparseConfig, layers: tuple[LayerConfig, ...]) -> None:
    if sparse.region != 8:
        raise ConfigError(f"sparse_config.region_block_size = {sparse.region}: only 8 is supported")
    if sparse.topk > 1024:
        raise ConfigError(f"sparse_config.topk = {sparse.topk} is over 1024 regions")
    if sparse.heads % sparse.groups or sparse.rope_dim % 2 or sparse.rope_dim > sparse.proxy_dim:
        raise ConfigError(
            f"sparse_config: num_heads = {sparse.heads} in num_provider_groups = {sparse.groups}, "
            f"rope_dim = {sparse.rope_dim} of proxy_dim = {sparse.proxy_dim} do not fit together"
        )
    for layer in layers:
        if layer.attention == "full" and layer.kv_heads != sparse.groups:
            raise ConfigError(
                f"num_provider_groups = {sparse.groups} differs from the {layer.kv_heads} KV heads "
                f"of layer {layer.index}; each KV head has its own selection"
            )
