"""The training report: curves as one PNG and the measured facts as markdown.

Reads what the stages left in --work (curves as CSV, facts.json, data.json); measures nothing.
"""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import matplotlib

from models.recipe.recipe import Recipe

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Curve = dict[str, tuple[list[float], list[float]]]
# title, entry of facts.json, measure, lower bound
BARS = (
    ("library, teacher-forced tokens a step", "align, drafts", "library_tokens_a_step", 2.6),
    ("library, greedy tokens a step", "greedy, library", "tokens_a_step", 2.6),
    ("chat, greedy tokens a step", "greedy, chats", "tokens_a_step", 3.0),
    ("chat, well formed", "greedy, chats", "well_formed", 0.95),
    ("tools, right", "greedy, chats", "right_tool", 0.8),
    ("JSON, right", "greedy, chats", "right_json", 0.8),
    ("copy, right", "greedy, chats", "right_copy", 0.6),
    ("sort, right", "greedy, chats", "right_sort", 0.6),
)


def read_curve(path: Path) -> Curve:
    """Each column of a curve file as (steps, values), empty cells left out."""
    curve: Curve = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            for column, text in row.items():
                if column != "step" and text:
                    steps, values = curve.setdefault(column, ([], []))
                    steps.append(float(row["step"]))
                    values.append(float(text))
    return curve


def _panel(
    axes: Any, title: str, curve: Curve, labels: dict[str, str], *, log: bool = False
) -> None:
    for column, label in labels.items():
        if column in curve:
            axes.plot(*curve[column], label=label, linewidth=1.2)
    axes.set_title(title)
    axes.set_xlabel("step")
    if log:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def draw_curves(work: Path, path: Path) -> None:
    """A row of panels for the trunk, one for its tasks and the distillation, one for align."""
    trunk, distil, align = (read_curve(work / f"{s}.csv") for s in ("trunk", "distil", "align"))
    figure, grid = plt.subplots(3, 3, figsize=(15, 12))
    losses = {"library": "library", "answers": "chat answers"}
    perplexity = {"library_ppl": "library", "answers_ppl": "chat answers"}
    mass = {"recall": "indexer's choice", "random": "random choice"}
    tasks = {key: key.removeprefix("exact_") for key in trunk if key.startswith("exact_")}
    agreement = {f"agree{depth}": f"depth {depth}" for depth in (1, 2, 3)}
    steps = {"library_tokens_a_step": "library", "chat_tokens_a_step": "chat answers"}
    _panel(grid[0, 0], "trunk: training loss", trunk, losses, log=True)
    _panel(grid[0, 1], "trunk: perplexity, held out", trunk, perplexity, log=True)
    _panel(grid[0, 2], "trunk: attention mass that 16 regions hold", trunk, mass)
    _panel(grid[1, 0], "trunk: share of exact answers, held out", trunk, tasks)
    _panel(grid[1, 1], "distil: drafts equal to the backbone's choice, training", distil, agreement)
    _panel(grid[1, 2], "distil: teacher-forced tokens a step, held out", distil, steps)
    _panel(grid[2, 0], "align: training loss", align, losses, log=True)
    _panel(grid[2, 1], "align: drafts equal to the backbone's choice, training", align, agreement)
    _panel(grid[2, 2], "align: teacher-forced tokens a step, held out", align, steps)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def _table(title: str, values: dict[str, Any]) -> list[str]:
    rows = [f"| {key} | {_shown(value)} |" for key, value in values.items()]
    return [f"## {title}", "", "| measure | value |", "|---|---|", *rows, ""]


def _bars(facts: dict[str, dict[str, Any]]) -> list[str]:
    """The measured values beside what was asked of them."""
    rows = [
        f"| {title} | {least} | {_shown(facts[key][measure])} |"
        f" {'yes' if facts[key][measure] >= least else '**no**'} |"
        for title, key, measure, least in BARS
        if key in facts
    ]
    head = ["| held out | at least | measured | reached |", "|---|---|---|---|"]
    return ["## What was asked and what came out", "", *head, *rows, ""]


def write_report(work: Path, out: Path, recipe: Recipe) -> None:
    """REPORT.md and curves.png in `out`; a history.md in `work` is quoted first."""
    out.mkdir(parents=True, exist_ok=True)
    draw_curves(work, out / "curves.png")
    facts = json.loads((work / "facts.json").read_text())
    history = work / "history.md"
    lines = [
        "# step5-nano: training report",
        "",
        "Written by `python -m models.recipe --stage report` from what the stages measured. All",
        "text is held out: library files and chat questions that no stage trained on.",
        "",
        *(history.read_text().splitlines() + [""] if history.exists() else []),
        *_bars(facts),
        "![curves](curves.png)",
        "",
        "`exact`: every answer token is the argmax after the true ones. `right`: the greedy answer",
        "passes the task's check. `agree`: drafts equal to the backbone's argmax on true text.",
        "`tokens_a_step`: under `drafts` on true text, under `greedy` of generated text.",
        "",
    ]
    for key, values in facts.items():
        lines += _table(key, values)
    lines += _table("data", json.loads((work / "data.json").read_text()))
    lines += _table("recipe", _flat(dataclasses.asdict(recipe)))
    (out / "REPORT.md").write_text("\n".join(lines).rstrip() + "\n")


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Nested values under dotted names."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        inner = value if isinstance(value, dict) else None
        result |= {f"{key}.{name}": v for name, v in inner.items()} if inner else {key: value}
    return result
