"""How much memory this machine has, and how much of it may be taken.

Knows what the system says. Does not know who asks. Keeps true: what a container, or any group that
holds it, may not take is not called available; a system that tells less of a group is no error.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MEMORY, _GROUPS, _MINE = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True, kw_only=True)
class _Names:
    """What a version of cgroups calls a limit and what is used; what begins its kinds of use."""

    limit: str
    used: str
    kinds: str


_SECOND = _Names(limit="memory.max", used="memory.current", kinds="")
_FIRST = _Names(limit="memory.limit_in_bytes", used="memory.usage_in_bytes", kinds="total_")


def total() -> int:
    """Bytes of this machine."""
    return _numbers(_MEMORY)["MemTotal:"] * 1024


def available() -> int:
    """Bytes that may be taken without taking any from others, or what the limit of a group of
    processes leaves if that is less."""
    free = _numbers(_MEMORY)["MemAvailable:"] * 1024
    return min([free, *(_left(folder, names) for folder, names in _groups())])


def _groups() -> Iterator[tuple[Path, _Names]]:
    """This process's and all that hold it, as far as they are to be seen from here."""
    for line in _MINE.read_text().splitlines() if _MINE.exists() else ():
        _, controllers, place = line.split(":", 2)
        if not controllers:
            top, names = _GROUPS, _SECOND
        elif "memory" in controllers.split(","):
            top, names = _GROUPS / "memory", _FIRST
        else:
            continue
        own = top / place.strip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(top) and (folder / names.limit).exists():
                yield folder, names


def _left(folder: Path, names: _Names) -> int:
    """What the limit leaves. Files that were read, such as a checkpoint, are part of the use and
    make room."""
    most, used, stat = folder / names.limit, folder / names.used, folder / "memory.stat"
    if (limit := most.read_text().strip()) == "max":
        return sys.maxsize
    kinds = _numbers(stat) if stat.exists() else {}
    files = sum(kinds.get(f"{names.kinds}{kind}_file", 0) for kind in ("inactive", "active"))
    return int(limit) - (int(used.read_text()) if used.exists() else 0) + files


def _numbers(path: Path) -> dict[str, int]:
    """A file of names and numbers, which may have units."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number, *_ in lines}
