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


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_that_holds_ours_has_a_limit_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """As a unit of systemd with MemoryMax: not at the top, and above where this process is."""
    group(tmp_path, monkeypatch, version, "400000", place="system.slice")
    assert ram.available() == 100_000


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("missing", [("stat",), ("stat", "current", "usage_in_bytes")])
def test_what_is_not_told_of_a_group_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, missing: tuple[str, ...]
) -> None:
    group(tmp_path, monkeypatch, version, "9223372036854771712")
    for name in missing:
        for path in tmp_path.rglob(f"memory.{name}"):
            path.unlink()
    assert ram.available() == 2048_000


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = folder / "meminfo"
    memory.write_text("MemTotal: 9000 kB\nMemAvailable:    2000 kB\nHugePages_Total:   0\n")
    monkeypatch.setattr(ram, "_MEMORY", memory)
    monkeypatch.setattr(ram, "_GROUPS", folder)
    monkeypatch.setattr(ram, "_MINE", folder / "none")


def group(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: int, limit: str, *, place: str = ""
) -> None:
    """This process is in a group within the one at `place`, which has the limit."""
    machine(folder, monkeypatch)
    mine = folder / "mine"
    kind = "" if version == 2 else "cpu,memory"
    mine.write_text(f"7:pids:/elsewhere\n3:{kind}:/{place}/own\n")
    monkeypatch.setattr(ram, "_MINE", mine)
    names, kinds = ("max", "current"), ""
    if version == 1:
        names, kinds, folder = ("limit_in_bytes", "usage_in_bytes"), "total_", folder / "memory"
    folder /= place
    folder.mkdir(parents=True, exist_ok=True)
    stat = f"anon 1\n{kinds}inactive_file 150000\n{kinds}active_file 50000"
    for name, text in zip((*names, "stat"), (limit, "500000", stat), strict=True):
        (folder / f"memory.{name}").write_text(f"{text}\n")
