"""How much memory this machine has, and how much of it may be taken.

Knows what the system says. Does not know who asks. Keeps true: what a container may not take is not
called available.
"""

import sys
from pathlib import Path

_MEMORY, _CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
# A container's limit, its use, and how kinds of use are named: of cgroup 2 and of cgroup 1.
_GROUPS = (
    ("memory.max", "memory.current", ""),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_"),
)


def total() -> int:
    """Bytes of this machine."""
    return _numbers(_MEMORY)["MemTotal:"] * 1024


def available() -> int:
    """Bytes that may be taken without taking any from others, or what the limit of a container
    leaves if that is less."""
    free = _numbers(_MEMORY)["MemAvailable:"] * 1024
    return min([free, *(_left(*group) for group in _GROUPS if (_CONTAINER / group[0]).exists())])


def _left(limit: str, use: str, kinds: str) -> int:
    """What the limit leaves. Files that were read, such as a checkpoint, are part of the use and
    make room."""
    most = (_CONTAINER / limit).read_text().strip()
    if most == "max":
        return sys.maxsize
    used = _CONTAINER / use
    kind = _numbers(used.with_name("memory.stat"))
    files = kind[f"{kinds}inactive_file"] + kind[f"{kinds}active_file"]
    return int(most) - int(used.read_text()) + files


def _numbers(path: Path) -> dict[str, int]:
    """A file of names and numbers, which may have units."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number, *_ in lines}
