"""The model's mathematics: pure functions of tensors and state, in reading order
norm, rope, linear, mlp, moe, indexer, attention.

They know nothing of requests, files or devices. Activations are bf16 or f32 ("the activation
dtype"): the dtype of the tensor handed in decides, and with f32 every intermediate rounding of
architecture 3-5 disappears except those of the indexer.

Legend, used by every module here: T rows, H hidden, N query heads, G KV heads (= provider groups),
D head_dim, F feed-forward, E experts, K chosen experts or regions, V vocabulary, I indexer heads,
P proxy_dim, R regions of the context, L keys a row can see, S slots, B blocks, C ring rows.
"""
