"""Measures an engine against what the machine's memory allows: `fourstep bench`."""
