"""How much memory this machine has, and how much of it may be taken.

Knows what the system says. Does not know who asks. Keeps true: what a container may not take is not
called available.
"""

from pathlib import Path

_MEMORY, _LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def total() -> int:
    """Bytes of this machine."""
    return _bytes("MemTotal")


def available() -> int:
    """Bytes that may be taken without taking any from others, or the limit of a container if that
    is less."""
    free = _bytes("MemAvailable")
    limit = _LIMIT.read_text().strip() if _LIMIT.exists() else "max"
    return free if limit == "max" else min(free, int(limit))


def _bytes(name: str) -> int:
    line = next(line for line in _MEMORY.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
