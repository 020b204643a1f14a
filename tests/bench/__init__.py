"""Benchmarks. Threads wait as under the `fourstep` command; set before torch is imported."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
