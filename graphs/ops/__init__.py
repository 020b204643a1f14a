"""Operators: what a kernel replaces, as a schema with its reference in torch."""
