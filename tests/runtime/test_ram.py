"""What may be taken of memory, as the system tells it."""

from pathlib import Path

import pytest

from runtime import ram


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("limit", "found"), [("1200000", 900_000), ("9999999", 2048_000), ("400000", 100_000)]
)
def test_a_container_may_have_less_than_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, limit: str, found: int
) -> None:
    """What its processes use is not there, what it has read of files is."""
    group(tmp_path, monkeypatch, version, limit)
    assert ram.available() == found


def test_a_container_may_have_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(tmp_path, monkeypatch, 2, "max")
    assert ram.available() == 2048_000


def test_there_may_be_no_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, monkeypatch)
    assert ram.available() == 2048_000
    assert ram.total() == 9_216_000


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = folder / "meminfo"
    memory.write_text("MemTotal: 9000 kB\nMemAvailable:    2000 kB\nHugePages_Total:   0\n")
    monkeypatch.setattr(ram, "_MEMORY", memory)
    monkeypatch.setattr(ram, "_CONTAINER", folder)


def group(folder: Path, monkeypatch: pytest.MonkeyPatch, version: int, limit: str) -> None:
    machine(folder, monkeypatch)
    names, kinds, place = ("max", "current"), "", folder
    if version == 1:
        names, kinds, place = ("limit_in_bytes", "usage_in_bytes"), "total_", folder / "memory"
        place.mkdir()
    stat = f"anon 1\n{kinds}inactive_file 150000\n{kinds}active_file 50000"
    for name, text in zip((*names, "stat"), (limit, "500000", stat), strict=True):
        (place / f"memory.{name}").write_text(f"{text}\n")
