"""vllm.grpc.engine.VllmEngine: the protocol that gateways speak, over what fourstep.v1 serves."""
