"""A minute of the soak, with the tiny model: see tests/soak/rounds.py for what is checked."""

from pathlib import Path

from tests.server.tiny_checkpoint import write_checkpoint
from tests.soak.rounds import Load, soak, soak_file


def test_a_minute_of_mixed_load(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    config = soak_file(tmp_path, checkpoint, compiler="eager", context=512, slots=3, queued=6)
    load = Load(users=6, asks=10, most_tokens=16, failure_s=2.0, seed=1)
    lines = list[str]()
    soak(config, load, rounds=range(1, 5), seconds=12.0, report=lines.append)
    assert len(lines) == 4
    assert all(" OK " in line for line in lines)
