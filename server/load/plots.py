"""Plots of a load as PNG files: its latencies' distributions, and what happened when.

Knows matplotlib, which is an extra and imported when a plot is drawn. Keeps true: what is drawn is
what the tables count; a request that failed is drawn as one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from runtime.bench.drawing import DPI, ready
from server.load.report import OK, first_ms, gaps_ms, total_ms
from server.load.run import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 60  # of the time line
WIDE = 50  # times as long: from there on an axis has room for powers of ten alone


def write_plots(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Write serve-latency.png and serve-time.png. Raises ValueError when matplotlib is missing."""
    ready(folder)
    latency, time = folder / "serve-latency.png", folder / "serve-time.png"
    _latency(outcomes, latency)
    _time(outcomes, time)
    return [latency, time]


def _latency(outcomes: Sequence[Outcome], path: Path) -> None:
    """A panel a kind: the share of requests, or of gaps, that took at most so long."""
    from matplotlib import pyplot

    whole = [outcome for outcome in outcomes if outcome.status == OK]
    kinds = {
        "first token": [first_ms(outcome) for outcome in whole],
        "between messages": [gap for outcome in whole for gap in gaps_ms(outcome)],
        "whole answer": [total_ms(outcome) for outcome in whole],
    }
    figure, panels = pyplot.subplots(1, len(kinds), figsize=(12, 3.6), sharey=True)
    for axes, (name, values) in zip(panels, kinds.items(), strict=True):
        _distribution(axes, values)
        axes.set_title(name)
        axes.set_xlabel("ms")
    panels[0].set_ylabel("share")
    figure.savefig(path, dpi=DPI, bbox_inches="tight")
    pyplot.close(figure)


def _distribution(axes: "Axes", values: Sequence[float]) -> None:
    """On a logarithmic axis, with the middle and the tail marked."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    if not values:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center")
        return
    placed = numpy.sort(values)
    axes.step(placed, numpy.arange(1, 1 + len(placed)) / len(placed), where="post")
    if placed[0] > 0:
        axes.set_xscale("log")
        few = placed[-1] < WIDE * placed[0]
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    for point, style in ((50, ":"), (99, "--")):
        value = float(numpy.percentile(placed, point))
        label = f"p{point} {value:,.0f}" if value >= 100 else f"p{point} {value:.3g}"
        axes.axvline(value, color="black", linewidth=0.8, linestyle=style, label=label)
    axes.legend(loc="lower right", fontsize="small")


def _time(outcomes: Sequence[Outcome], path: Path) -> None:
    """First tokens by when they were due; tokens a second and requests open by the clock."""
    from matplotlib import pyplot

    end = max((outcome.ended for outcome in outcomes), default=1.0)
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(9, 6), sharex=True, constrained_layout=True
    )
    whole = [outcome for outcome in outcomes if outcome.status == OK]
    failed = [outcome for outcome in outcomes if outcome.status != OK]
    above.plot(
        [outcome.due for outcome in whole], list(map(first_ms, whole)), ".", label="answered"
    )
    if failed:
        above.plot(
            [outcome.due for outcome in failed],
            [0.0] * len(failed),
            "rx",
            clip_on=False,
            label="failed",
        )
    above.set_ylabel("ms to the first token")
    above.set_ylim(bottom=0)
    above.grid(alpha=0.3)
    above.legend(loc="upper right", fontsize="small")
    _rates(below, outcomes, end)
    below.set_xlabel("seconds; above by when a request was due")
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)


def _rates(axes: "Axes", outcomes: Sequence[Outcome], end: float) -> None:
    edges = numpy.linspace(0, end, BINS + 1)
    times = [time for outcome in outcomes for time in outcome.times]
    counts = [count for outcome in outcomes for count in outcome.tokens]
    tokens, _ = numpy.histogram(times, edges, weights=counts)
    axes.stairs(tokens / (end / BINS), edges, fill=True, alpha=0.4, label="tokens a second")
    axes.set_ylabel("tokens a second")
    axes.grid(alpha=0.3)
    other = axes.twinx()
    begun = numpy.searchsorted(numpy.sort([outcome.due for outcome in outcomes]), edges, "right")
    ended = numpy.searchsorted(numpy.sort([outcome.ended for outcome in outcomes]), edges, "right")
    other.plot(edges, begun - ended, color="C1", label="requests open")
    other.set_ylabel("requests open")
    other.set_ylim(bottom=0)
    handles = [*axes.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
    axes.legend(handles, ["tokens a second", "requests open"], loc="upper right", fontsize="small")
