"""Results as tables of text, for a terminal or a document; and as JSON.

Knows which numbers are shown and how they follow from what was measured. Keeps true: a number from
several rounds is their median with the smallest and the largest; the share of memory speed
compares with the median of all samples of the same run.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphs.traffic import step_bytes
from runtime.bench.run import Case, Result

MS, US, MB, GB = 1e3, 1e6, 1e6, 1e9
LEGEND = """\
batch, width: slots of a step and positions verified for each; tokens/step: committed for each slot
experts: different routed experts a MoE layer reads; MB: what the step cannot avoid reading
of memory: those bytes a second over the memory's speed; time x, bytes x: over width 1"""


@dataclass(frozen=True, kw_only=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def spread(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    low, middle, high = min(values), statistics.median(values), max(values)
    if len(values) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def roof(result: Result) -> float:
    """Bytes a second, over all cases and rounds."""
    return statistics.median(roofs(result))


def roofs(result: Result) -> list[float]:
    return [sample for case in result.cases for sample in case.roof]


def step_seconds(case: Case) -> float:
    return statistics.median(case.step_s)


def tokens_per_second(case: Case) -> float:
    return case.batch * case.length / step_seconds(case)


def memory_share(case: Case) -> float:
    """Round by round: the machine's memory is not always equally quick."""
    return statistics.median(memory_shares(case))


def memory_shares(case: Case) -> list[float]:
    """Of each round."""
    size = step_bytes(case.reads)
    return [size / seconds / speed for seconds, speed in zip(case.step_s, case.roof, strict=True)]


def plain(result: Result, batch: int) -> Case | None:
    """Width 1 at that batch, if it was measured."""
    cases = [case for case in result.cases if case.batch == batch and case.width == 1]
    return cases[0] if cases else None


def ratios(result: Result, case: Case) -> tuple[float, float] | None:
    """Step time and bytes over those of width 1 at the same batch."""
    base = plain(result, case.batch)
    if base is None:
        return None
    times = step_seconds(case) / step_seconds(base)
    return times, step_bytes(case.reads) / step_bytes(base.reads)


def tables(result: Result) -> list[Table]:
    return [_decode(result), _prefill(result), *_kinds(result), _host(result)]


def _decode(result: Result) -> Table:
    speed = spread([sample / GB for sample in roofs(result)], 1)
    return Table(
        title=f"Decode; memory is read at {speed} GB/s",
        columns=(
            *("batch", "width", "tokens/step", "ms/step", "tokens/s", "experts", "MB"),
            *("of memory", "time x", "bytes x"),
        ),
        rows=tuple(_decode_row(result, case) for case in result.cases),
    )


def _decode_row(result: Result, case: Case) -> tuple[str, ...]:
    distinct = statistics.mean(case.distinct) if case.distinct else 0.0
    compared = ratios(result, case)
    return (
        str(case.batch),
        str(case.width),
        f"{case.length:.2f}",
        spread([MS * value for value in case.step_s], 2),
        f"{tokens_per_second(case):.1f}",
        f"{distinct:.1f}",
        f"{step_bytes(case.reads) / MB:.0f}",
        f"{memory_share(case):.2f}",
        *(f"{ratio:.2f}" for ratio in compared or ()),
        *([] if compared else ["", ""]),
    )


def _prefill(result: Result) -> Table:
    rows = result.options.prefix
    speeds = [rows / seconds for seconds in result.prefill_s]
    return Table(
        title="Prefill",
        columns=("rows", "rows/s"),
        rows=((str(rows), spread(speeds, 0)),),
    )


def _kinds(result: Result) -> list[Table]:
    """One table a width, batch 1."""
    found = []
    for width, kinds in result.kinds.items():
        reads = reads_of(result, width)
        rows = []
        for kind in kinds:
            seconds, size = statistics.median(kind.seconds), reads.get(kind.kind, 0.0)
            rows.append(
                (
                    kind.kind,
                    str(kind.count),
                    spread([MS * value for value in kind.seconds], 2),
                    f"{size / MB:.1f}",
                    f"{size / seconds / roof(result):.2f}",
                )
            )
        columns = ("kind", "blocks", "ms", "MB", "of memory")
        found.append(
            Table(title=f"Blocks of a step, width {width}", columns=columns, rows=tuple(rows))
        )
    return found


def reads_of(result: Result, width: int) -> dict[str, float]:
    """Bytes by kind at the smallest batch."""
    case = next(case for case in result.cases if case.width == width)
    return {part.kind: part.total for part in case.reads}


def _host(result: Result) -> Table:
    rows = tuple((str(width), f"{US * value:.0f}") for width, value in result.host_s.items())
    return Table(
        title="Host, outside the engine's programs", columns=("width", "us/step"), rows=rows
    )


def to_json(result: Result) -> dict[str, Any]:
    """Seconds, bytes and bytes a second, unrounded."""
    return {
        "options": vars(result.options),
        "memory_bytes_per_second": roofs(result),
        "prefill_rows": result.options.prefix,
        "prefill_seconds": list(result.prefill_s),
        "host_seconds": {str(width): value for width, value in result.host_s.items()},
        "cases": [
            {
                "width": case.width,
                "batch": case.batch,
                "tokens_per_step": case.length,
                "step_seconds": case.step_s,
                "tokens_per_second": tokens_per_second(case),
                "distinct_experts": list(case.distinct),
                "bytes": step_bytes(case.reads),
                "memory_share": memory_share(case),
            }
            for case in result.cases
        ],
        "kinds": {
            str(width): [
                {
                    "kind": kind.kind,
                    "blocks": kind.count,
                    "seconds": list(kind.seconds),
                    "bytes": reads_of(result, width).get(kind.kind, 0.0),
                }
                for kind in kinds
            ]
            for width, kinds in result.kinds.items()
        },
    }
