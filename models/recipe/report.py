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
    """Loss, tasks, indexer recall, distillation and acceptance over the steps."""
    trunk, distil = (read_curve(work / f"{stage}.csv") for stage in ("trunk", "distil"))
    figure, grid = plt.subplots(2, 3, figsize=(15, 8))
    losses = {"library": "library", "answers": "chat answers"}
    _panel(grid[0, 0], "Trunk: training loss", trunk, losses, log=True)
    tasks = {key: key.removeprefix("exact_") for key in trunk if key.startswith("exact")}
    _panel(grid[0, 1], "Trunk: exact answers, held out", trunk, tasks)
    recall = {"recall": "indexer's choice", "random": "random choice"}
    _panel(grid[0, 2], "Attention mass that 16 regions hold", trunk, recall)
    perplexity = {"library_ppl": "library", "answers_ppl": "chat answers"}
    _panel(grid[1, 0], "Trunk: perplexity, held out", trunk, perplexity, log=True)
    agreement = {f"agree{depth}": f"depth {depth}" for depth in (1, 2, 3)}
    _panel(grid[1, 1], "MTP: agreement with the trunk (training)", distil, agreement)
    steps = {"library_tokens_a_step": "library", "chat_tokens_a_step": "chat answers"}
    _panel(grid[1, 2], "MTP: teacher-forced tokens a step, held out", distil, steps)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _table(title: str, values: dict[str, Any]) -> list[str]:
    lines = [f"### {title}", "", "| measure | value |", "|---|---|"]
    for key, value in values.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        lines.append(f"| {key} | {shown} |")
    return [*lines, ""]


def write_report(work: Path, out: Path, recipe: Recipe) -> None:
    """REPORT.md and curves.png in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    draw_curves(work, out / "curves.png")
    facts = json.loads((work / "facts.json").read_text())
    lines = [
        "# step5-nano: training report",
        "",
        "Made by `python -m models.recipe` (see ../README.md). Everything below is on held-out",
        "library files and held-out chats; `exact` means every answer token is the argmax after",
        "the true ones, `right` that the greedy answer passes the task's check.",
        "",
        "![curves](curves.png)",
        "",
    ]
    lines += _table("Data", json.loads((work / "data.json").read_text()))
    for key, values in facts.items():
        lines += _table(key, values)
    lines += _table("Recipe", dataclasses.asdict(recipe))
    (out / "REPORT.md").write_text("\n".join(lines).rstrip() + "\n")
