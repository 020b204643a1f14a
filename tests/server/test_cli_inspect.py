"""`fourstep inspect`: what a checkpoint's files have that nobody reads is told, once."""

import json
from pathlib import Path

from typer.testing import CliRunner

from server.cli_commands import app
from tests.server.tiny_checkpoint import write_checkpoint


def test_unknown_keys_are_told(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", positions=4096)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["rope_typo"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    note = "config.json: unknown keys ignored: text_config.rope_typo"
    found = CliRunner().invoke(app, ["inspect", str(folder), "--json"])
    assert json.loads(found.stdout)["notes"] == [note]
    assert f"note: {note}" in CliRunner().invoke(app, ["inspect", str(folder)]).stdout
