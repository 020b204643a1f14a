"""The section on the synthetic model: what `fourstep bench` measures, and the bars' numbers.

Keeps true: the bars compare medians of one run, whose cases were interleaved.
"""

import statistics
from collections.abc import Callable

from runtime.bench.plots import write_plots
from runtime.bench.run import Case, Options, Result, measure
from runtime.bench.tables import LEGEND, memory_share, memory_shares, tables, tokens_per_second
from tests.bench.document import DOCS, Section
from tests.bench.subjects import THREADS, subject, synthetic

OPTIONS = Options(batches=(1, 4), rounds=15, threads=THREADS)


def run(say: Callable[[str], object]) -> Section:
    return section(measure(subject(synthetic(say), say), OPTIONS, say))


def section(result: Result) -> Section:
    options = result.options
    plots = write_plots(result, DOCS / "plots", "synthetic")
    text = (
        f"`fourstep bench --synthetic` (here by `make bench`): random weights, hidden 1024, 24 + 3 "
        f"layers, 64 experts top 8 in NVFP4; {options.threads} threads, {options.prefix} positions "
        f"before the first step, {options.steps} steps in each of {options.rounds} rounds.\n\n"
        + "\n".join(f"- {line}" for line in LEGEND.splitlines())
    )
    return Section(
        key="synthetic",
        title="Synthetic model",
        text=text,
        tables=tuple(tables(result)),
        plots=tuple(str(path.relative_to(DOCS)) for path in plots),
        numbers=numbers(result),
    )


def numbers(result: Result) -> dict[str, float]:
    """What the bars are judged by; batch 1, widths 1 and 4."""
    cases: dict[int, Case] = {case.width: case for case in result.cases if case.batch == 1}
    plain, wide = cases[1], cases[4]
    # Each step against the memory's speed beside it, which changes more than what is compared.
    pairs = zip(memory_shares(plain), memory_shares(wide), strict=True)
    over = statistics.median(one / other for one, other in pairs)
    return {
        "plain_memory_share": memory_share(plain),
        "width_4_time_over_bytes": over,
        "gain": tokens_per_second(wide) / tokens_per_second(plain),
        "gain_of_allowed": 1 / over,
    }
