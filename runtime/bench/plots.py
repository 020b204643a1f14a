"""Plots of a measurement as PNG files: step time by width, share of memory speed by kind of layer.

Knows matplotlib, which is an extra and imported when a plot is drawn. Keeps true: what is drawn is
what the tables say.
"""

import statistics
from pathlib import Path

from graphs.traffic import step_bytes
from runtime.bench.drawing import DPI, ready
from runtime.bench.run import Result
from runtime.bench.tables import MS, reads_of, roof, step_seconds


def write_plots(result: Result, folder: Path, stem: str) -> list[Path]:
    """Write STEM-steps.png and STEM-kinds.png. Raises ValueError when matplotlib is missing."""
    ready(folder)
    steps, kinds = folder / f"{stem}-steps.png", folder / f"{stem}-kinds.png"
    _steps(result, steps)
    _kinds(result, kinds)
    return [steps, kinds]


def _steps(result: Result, path: Path) -> None:
    """A line a batch, dashed: the time memory needs for the bytes alone."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for batch in result.options.batches:
        cases = [case for case in result.cases if case.batch == batch]
        widths = [case.width for case in cases]
        [line] = axes.plot(
            widths, [MS * step_seconds(case) for case in cases], "o-", label=f"batch {batch}"
        )
        least = [MS * step_bytes(case.reads) / roof(result) for case in cases]
        axes.plot(widths, least, "--", color=line.get_color(), label=f"batch {batch}, bytes alone")
    axes.set_xticks(result.options.widths)
    axes.set_xlabel("width (positions verified a step)")
    axes.set_ylabel("ms a step")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=DPI, bbox_inches="tight")
    pyplot.close(figure)


def _kinds(result: Result, path: Path) -> None:
    """Bars by kind of block, a colour a width, batch 1."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    names = [kind.kind for kind in result.kinds[max(result.kinds)]]
    bars = len(result.kinds)
    for number, (width, kinds) in enumerate(result.kinds.items()):
        reads = reads_of(result, width)
        shares = {
            kind.kind: reads.get(kind.kind, 0.0) / statistics.median(kind.seconds) / roof(result)
            for kind in kinds
        }
        places = [index + (number - (bars - 1) / 2) * 0.8 / bars for index in range(len(names))]
        heights = [shares.get(name, 0.0) for name in names]
        axes.bar(places, heights, 0.8 / bars, label=f"width {width}")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
    axes.set_ylabel("share of memory read speed")
    axes.legend()
    figure.savefig(path, dpi=DPI, bbox_inches="tight")
    pyplot.close(figure)
