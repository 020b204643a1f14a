"""Benchmarks: what `make bench` measures and how it is written down."""
