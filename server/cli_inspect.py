"""The text form of `fourstep inspect`: a graphs.inspect.Report as rich tables.

Knows wording and layout only. Keeps true: every number shown is in the report, so `--json` says the
same.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from graphs.footprint import Footprint
from graphs.inspect import Report, TpOption
from graphs.sku import RESERVE, Fit
from graphs.state import BLOCK
from server.errors import printable


def noting(report: Report, warnings: Sequence[str]) -> Report:
    """With all that opening the checkpoint warned of, its own notes among them."""
    told = (warning.removeprefix(f"{report.folder}: ") for warning in warnings)
    return dataclasses.replace(report, notes=tuple(dict.fromkeys((*told, *report.notes))))


def render(report: Report) -> RenderableType:
    """Summary, module groups, and what fits where."""
    free = f"{RESERVE:.0%} of the memory kept free"
    title = f"Context tokens of one sequence that fit beside the weights ({free}):"
    parts: list[RenderableType] = [_summary(report), "", _groups(report), "", title, _fits(report)]
    parts += [
        Text(f"TP {o.tp} is not possible: {', '.join(o.obstacles)}") for o in _refused(report)
    ]
    parts += [Text(printable(f"note: {note}"), style="yellow") for note in report.notes]
    return Group(*parts)


def _refused(report: Report) -> list[TpOption]:
    return [option for option in report.tp if option.obstacles]


def _summary(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a path is of use whole
    table.add_row("checkpoint", report.folder)
    experts = f", {report.moe_layers} MoE layers" if report.moe_layers else ""
    full = len(report.full_layers)
    table.add_row("backbone", f"{report.layers} layers, {full} with full attention{experts}")
    if report.experts:
        table.add_row("experts", f"{report.experts}, {report.experts_per_token} a token")
    table.add_row("MTP", _mtp(report))
    table.add_row("vision", "weights present, not run yet" if report.vision else "none")
    table.add_row("context", f"{report.context:,} tokens")
    active = f"{_count(report.active_parameters)} active a token in the backbone"
    table.add_row("parameters", f"{_count(report.parameters)}, {active}")
    table.add_row(
        "size", f"{size(report.bytes)} in {report.tensors:,} tensors, {report.files} files"
    )
    token = size(round(report.state.per_block / BLOCK))
    table.add_row("state", f"{token} a token and {size(report.state.per_sequence)} a sequence")
    for sized in report.sizes:
        table.add_row("", _sized(sized))
    return table


def _sized(sized: Footprint) -> str:
    """One line: what an engine allocates, and what a prefix cache has beside it."""
    many = f"{sized.sequences} sequences" if sized.sequences > 1 else "one sequence"
    tails = f", prefix cache {size(sized.tails)} more" if sized.tails else ""
    return f"{size(sized.state)} for {many} of {sized.context:,} tokens{tails}"


def _mtp(report: Report) -> Text:
    if not report.mtp_layers:
        return Text("none")
    if not report.missing_mtp:
        return Text(f"{report.mtp_layers} layers")
    lacking = f"{len(report.missing_mtp)} tensors missing, first {report.missing_mtp[0]}"
    return Text(f"{report.mtp_layers} layers announced, {lacking}", style="red")


def _groups(report: Report) -> Table:
    table = Table("group", "format", "layers", box=None, padding=(0, 2, 0, 0))
    for heading in ("tensors", "parameters", "size"):
        table.add_column(heading, justify="right")
    for group in report.groups:
        numbers = (f"{group.tensors:,}", _count(group.parameters), size(group.bytes))
        table.add_row(group.name, group.format, ranges(group.layers), *numbers)
    return table


def _fits(report: Report) -> Table:
    sizes = [option.tp for option in report.tp if not option.obstacles]
    table = Table("GPU", box=None, padding=(0, 2, 0, 0))
    for tp in sizes:
        table.add_column(f"TP {tp}", justify="right")
    weights = {fit.tp: size(fit.weights) for fit in report.fits}
    table.add_row("weights a rank", *(weights[tp] for tp in sizes), end_section=True)
    cells = {(fit.sku, fit.tp): _room(fit, report.context) for fit in report.fits}
    for sku in dict.fromkeys(fit.sku for fit in report.fits):
        table.add_row(sku, *(cells[sku, tp] for tp in sizes))
    return table


def _room(fit: Fit, context: int) -> Text:
    """Room left for the KV cache, in tokens up to ten full contexts, else in contexts."""
    if not fit.kv_tokens:
        return Text("no", style="dim")
    if fit.kv_tokens >= 10 * context:
        return Text(f"{fit.kv_tokens // context:,} x {_tokens(context)}")
    return Text(_tokens(fit.kv_tokens))


def _tokens(count: int) -> str:
    return f"{count / 1024:,.0f}k" if count < 2**20 else f"{count / 2**20:,.1f}M"


def _count(number: int) -> str:
    return _scaled(number, "")


def size(number: int) -> str:
    """Bytes in decimal units, as drives and downloads are labelled."""
    return _scaled(number, "B")


def _scaled(number: int, unit: str) -> str:
    if number < 1000:
        return f"{number} {unit}".rstrip()
    value, prefixes = number / 1000, iter("kMGT")
    prefix = next(prefixes)
    while value >= 1000 and (larger := next(prefixes, "")):
        value, prefix = value / 1000, larger
    return f"{value:.1f} {prefix}{unit}"


def ranges(numbers: tuple[int, ...]) -> str:
    """0-2, 5, 7-91: neighbours joined; "3-91 step 4"; many runs are counted: "69 of 0-90"."""
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if len(numbers) > 2 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]}-{numbers[-1]} step {steps.pop()}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if len(runs) > 6:
        return f"{len(numbers)} of {runs[0][0]}-{runs[-1][1]}"
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
