"""What a gateway needs of a checkpoint's files: its names, its sampling defaults, its tokenizer.

Reads small files of the folder; knows no message. Keeps true: the archive of a folder has the same
bytes wherever and whenever it is made, so that its digest tells workers of one model apart from
others; a default that no request could ask for is refused at the start.
"""

import functools
import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.request import SamplingParams

# The files that a tokenizer can be made of, beside the template's.
NAMES = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json")
NAMES += ("special_tokens_map.json", "chat_template.json")
TEMPLATES = "*.jinja"
# Defaults that a checkpoint may name, and that a gateway fills in for its clients.
DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
TEMPERATURE = 1.0  # where the checkpoint says nothing: the model's own distribution
FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # of all files in an archive


@dataclass(frozen=True, kw_only=True)
class Card:
    """`defaults`: of sampling, as far as the checkpoint names them."""

    model_type: str
    architectures: tuple[str, ...]
    pad_id: int
    defaults: dict[str, float]

    @property
    def temperature(self) -> float:
        """Of a request that says nothing of it."""
        return self.defaults.get("temperature", TEMPERATURE)

    @classmethod
    def open(cls, folder: Path) -> "Card":
        """Raises ValueError, OSError."""
        config, generation = _json(folder / "config.json"), folder / "generation_config.json"
        said = _json(generation) if generation.is_file() else {}
        defaults = {name: said[name] for name in DEFAULTS if said.get(name) is not None}
        try:
            SamplingParams(**defaults)
        except ValueError as error:
            raise ValueError(f"{generation}: {error}") from error
        return cls(
            model_type=config.get("model_type", ""),
            architectures=tuple(config.get("architectures", ())),
            pad_id=said.get("pad_token_id") or 0,
            defaults=defaults,
        )


@functools.lru_cache(maxsize=1)
def archive(folder: Path) -> tuple[bytes, str]:
    """A zip of the tokenizer's files, and its sha256."""
    paths = [path for name in NAMES if (path := folder / name).is_file()]
    paths += sorted(folder.glob(TEMPLATES))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as zipped:
        for path in paths:
            entry = zipfile.ZipInfo(path.name, FIRST_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(entry, path.read_bytes())
    data = made.getvalue()
    return data, hashlib.sha256(data).hexdigest()


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
