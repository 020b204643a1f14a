"""A load's report as tables for a terminal.

Knows layout only.
"""

from collections.abc import Iterator

from rich.table import Table

from server.load.plan import Load
from server.load.report import POINTS, Goodput, Report, Spread

LEGEND = """\
first token: from when a request was due; sent late: how far the generator itself fell behind
between messages: of one answer, a message a step; time a token: its mean after the first one"""


def tables(found: Report, load: Load, goodput: Goodput | None) -> Iterator[Table | str]:
    loop = (
        f"{load.rate:g} requests a second arrive"
        if load.rate
        else f"{load.concurrency} requests open at a time"
    )
    yield f"{loop}; prompts of {load.prompt.text} tokens, answers of {load.answer.text}"
    yield _rates(found, goodput)
    yield _latencies(found)
    if found.answered < found.requests:
        yield _statuses(found)


def _rates(found: Report, goodput: Goodput | None) -> Table:
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("requests", f"{found.requests} in {found.seconds:.1f} s")
    table.add_row("answered", f"{found.answered}, {found.per_second(found.answered):.2f} a second")
    if goodput is not None and found.good is not None:
        limits = ", ".join(f"{name} {limit:g} ms" for name, limit in goodput.limits.items())
        share, rate = found.share(found.good), found.per_second(found.good)
        table.add_row(f"good ({limits})", f"{share:.1%}, {rate:.2f} a second")
    prompts = f"{found.prompt_tokens}, {found.per_second(found.prompt_tokens):.1f} a second"
    table.add_row("prompt tokens", f"{prompts}, {found.cached_tokens} cached")
    table.add_row("tokens", f"{found.tokens}, {found.per_second(found.tokens):.1f} a second")
    table.add_row("tokens a step", f"{found.tokens_a_step:.2f}")
    return table


def _latencies(found: Report) -> Table:
    table = Table(box=None)
    table.add_column("ms")
    for name in ("mean", *(f"p{point}" for point in POINTS), "max"):
        table.add_column(name, justify="right", no_wrap=True)
    rows: dict[str, Spread | None] = {
        "first token": found.first,
        "between messages": found.between,
        "time a token": found.token,
        "whole answer": found.total,
        "sent late": found.late,
    }
    for name, spread in rows.items():
        if spread is not None:
            values = (spread.mean, *spread.points.values(), spread.most)
            table.add_row(name, *(f"{value:.2f}" for value in values))
    return table


def _statuses(found: Report) -> Table:
    table = Table(box=None)
    table.add_column("status")
    table.add_column("requests", justify="right")
    for status, count in found.statuses.items():
        table.add_row(status, str(count))
    return table
