"""gRPC: servicers that translate between messages and the runtime, and their listeners."""
