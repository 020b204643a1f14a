"""What may be taken of memory, as the system tells it."""

from pathlib import Path

import pytest

from runtime import ram


@pytest.mark.parametrize(
    ("limit", "found"), [("max", 2048_000), ("1000", 1000), ("9999999", 2048_000), (None, 2048_000)]
)
def test_a_container_may_have_less_than_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, found: int
) -> None:
    memory, most = tmp_path / "meminfo", tmp_path / "memory.max"
    memory.write_text("MemTotal: 9000 kB\nMemAvailable:    2000 kB\n")
    if limit is not None:
        most.write_text(f"{limit}\n")
    monkeypatch.setattr(ram, "_MEMORY", memory)
    monkeypatch.setattr(ram, "_LIMIT", most)
    assert ram.available() == found
    assert ram.total() == 9_216_000
