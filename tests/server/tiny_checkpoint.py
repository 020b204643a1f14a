"""A checkpoint folder that the command line can run: golden weights, a tokenizer, a template.

The weights are random, so the text is noise: tokens that split characters, special tokens, ids that
the tokenizer does not have. That is what a stream has to survive.
"""

import json
from pathlib import Path

from tests.runtime.test_chat import FAMILY
from tests.runtime.tiny_tokenizer import tiny_core

GOLDEN = Path(__file__).parents[1] / "golden" / "bf16"


def write_checkpoint(folder: Path, *, leave_out: str = "", positions: int | None = None) -> Path:
    """Links to the golden files plus tokenizer.json and chat_template.jinja; with as many positions
    as is said."""
    folder.mkdir()
    for source in GOLDEN.iterdir():
        (folder / source.name).symlink_to(source)
    tiny_core().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(FAMILY, encoding="utf-8")
    if positions is not None:
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        for name in ("max_position_embeddings", "max_seq_len"):
            config["text_config"][name] = positions
        path.unlink()
        path.write_text(json.dumps(config), encoding="utf-8")
    if leave_out:
        (folder / leave_out).unlink()
    return folder
