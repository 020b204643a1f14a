"""What operators see of a worker: metrics, probes, logs and traces."""
