"""docs/results.md, made of sections that each benchmark replaces by its own.

Knows the order of sections and how one looks. What was measured is kept in docs/results.json, so
that a benchmark rewrites its section without running the others again, and the bars are judged from
all of them. Keeps true: every section says its command, its machine and its day.
"""

import dataclasses
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from graphs.machine import this_machine
from runtime.bench.tables import Table
from tests.bench.bars import bars_table
from tests.sources import ROOT

DOCS = ROOT / "docs"
ORDER = ("synthetic", "peers", "nano", "build", "start", "memory", "requests", "long", "serving")
HEAD = """\
# Results

Written by `make bench` and `make bench-peers`; do not edit. Numbers of several rounds are medians,
with the smallest and the largest in brackets; what was measured is in [results.json](results.json),
what was tried and not kept in [rejected.md](rejected.md).
"""


@dataclass(frozen=True, kw_only=True)
class Section:
    """`numbers` are what the bars are judged from; `plots` are files beside the document."""

    key: str
    title: str
    text: str
    tables: tuple[Table, ...]
    plots: tuple[str, ...] = ()
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.key in ORDER, self.key


def publish(sections: Sequence[Section], docs: Path = DOCS) -> str:
    """Replace these sections in DOCS/results.json and write DOCS/results.md, which is returned."""
    stored_path = docs / "results.json"
    stored: dict[str, Any] = json.loads(stored_path.read_text()) if stored_path.exists() else {}
    for section in sections:
        stored[section.key] = {**dataclasses.asdict(section), "machine": machine()}
    stored = {key: stored[key] for key in ORDER if key in stored}
    stored_path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    text = render(stored)
    (docs / "results.md").write_text(text, encoding="utf-8")
    return text


def render(stored: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole document, from what results.json holds."""
    numbers = {key: section["numbers"] for key, section in stored.items()}
    parts = [HEAD, f"## Bars\n\n{markdown(bars_table(numbers))}"]
    parts += [_section(section) for section in stored.values()]
    return "\n".join(parts)


def _section(section: Mapping[str, Any]) -> str:
    lines = [f"## {section['title']}", "", section["text"], "", f"Machine: {section['machine']}."]
    for table in section["tables"]:
        lines += ["", f"**{table['title']}**", "", markdown(Table(**table)).rstrip()]
    for plot in section["plots"]:
        lines += ["", f"![{Path(plot).stem}]({plot})"]
    return "\n".join(lines) + "\n"


def markdown(table: Table) -> str:
    """The rows and columns; the first column is text."""
    rows = ["| " + " | ".join(row) + " |" for row in (table.columns, *table.rows)]
    line = "|---" + "|---:" * (len(table.columns) - 1) + "|"
    return "\n".join([rows[0], line, *rows[1:]]) + "\n"


def machine() -> str:
    """What the numbers were measured on, and when."""
    return (
        f"{this_machine().device}, {os.cpu_count()} cores seen, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )
