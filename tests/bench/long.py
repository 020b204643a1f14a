"""The section on long contexts: what a step costs from 4k to 1M positions, part by part.

Knows the sizes, the roof that scoring is compared with, and the plot. Keeps true: every round
measures every size and both roofs, the order turned by one each round; what is said to be predicted
is what `fourstep inspect` counts, from the config alone.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graphs.config import ModelConfig
from graphs.footprint import footprint
from graphs.ops.build import dot_speed
from runtime.bench.plots import DPI
from runtime.bench.roof import ReadSpeed
from runtime.bench.run import Subject
from runtime.bench.tables import GB, MB, MS, Table, spread
from runtime.engine import Engine
from tests.bench.document import DOCS, Section
from tests.bench.filled import ATTENTION, HOT, SCORING, Steps, fill, resident
from tests.bench.subjects import NANO, THREADS, subject, synthetic

CONTEXT = 2**20
SIZES = (4096, 8192, 16384, 65536, 262144, CONTEXT)
BASE = 8192  # the first size at which regions are chosen
ROUNDS, REPEATS = 7, 5
BACK = 8  # a size's step stands so far before its end, at the start of a region
TEXT = f"""\
`make bench` (= `python -m tests.bench long`): plain decoding at one position again and again,
caches filled with noise; one sequence in an engine of {CONTEXT:,} positions, {THREADS} threads,
medians of {ROUNDS} rounds in which all sizes take turns. Attention and scoring are the operators
region_attention and select_regions (projection of the queries, scores, choice) inside a whole step,
summed over the full layers; sliding is the sliding layers; the rest is what remains of the step.
Attention finds the caches as the rest of the step left them since the last call of its layer; hot
is the same call once more, at once, with its keys still in the caches, as it never is in a step.

- roof: how fast scores could be made, the lower of two speeds of the same run: that at which memory
  is read, for the bytes of the summaries, and that of the kernels' own dot products with all
  operands in the cache; the share is of the largest size
- at 4,096 positions the synthetic model attends to every region, and nothing is scored
- predicted: what `fourstep inspect` says the state takes, against the engine's own tensors"""


@dataclass(kw_only=True)
class Size:
    """One context: seconds of a step and of its parts, one entry a round."""

    positions: int
    whole: list[float] = field(default_factory=list)
    sliding: list[float] = field(default_factory=list)
    attention: list[float] = field(default_factory=list)
    hot: list[float] = field(default_factory=list)
    scoring: list[float] = field(default_factory=list)

    def middle(self, part: str) -> float:
        return statistics.median(getattr(self, part))

    @property
    def rest(self) -> float:
        return self.middle("whole") - sum(map(self.middle, ("sliding", "attention", "scoring")))


@dataclass(frozen=True, kw_only=True)
class Result:
    """One model. `read` in bytes a second, `dots` in dot products a second, one entry a round."""

    name: str
    config: ModelConfig
    sizes: tuple[Size, ...]
    read: tuple[float, ...]
    dots: tuple[float, ...]
    state_bytes: int
    predicted_bytes: int
    resident_bytes: int

    @property
    def roof(self) -> float:
        """Regions of one layer that could be scored a second."""
        sparse = self.config.sparse
        assert sparse is not None
        read = statistics.median(self.read) / sparse.proxy_dim
        return min(read, statistics.median(self.dots) / sparse.heads)

    def speed(self, size: Size) -> float:
        """Regions of one layer that are scored a second; 0 where all are taken unseen."""
        sparse, layers = self.config.sparse, len(self.config.full_layers)
        assert sparse is not None
        regions = (size.positions - BACK) // sparse.region
        return layers * regions / size.middle("scoring") if regions > sparse.topk else 0.0

    def size(self, positions: int) -> Size:
        return next(size for size in self.sizes if size.positions == positions)


def measure(
    name: str,
    what: Subject,
    say: Callable[[str], object],
    *,
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    dots: Callable[[int, int, int], float] = dot_speed,
    read_bytes: int = 2**28,
) -> Result:
    """Everything on one model, whose engine has the context of the last of `sizes`."""
    sparse = what.config.sparse
    assert sparse is not None
    before = resident()
    engine = Engine(
        what.config, what.weights, programs=what.programs, plan=what.plan, context=sizes[-1]
    )
    fill(engine.state)
    grown = resident() - before
    say(f"long: {name}, a state of {engine.state.nbytes / GB:.2f} GB")
    steps = Steps(engine, what, width=1)
    found = [Size(positions=size) for size in sizes]
    read: list[float] = []
    dot: list[float] = []
    with ReadSpeed(THREADS, nbytes=read_bytes) as memory:
        for number in range(1 + rounds):  # one to warm up
            for index in range(len(found)):
                _once(steps, found[(index + number) % len(found)], warm=number > 0)
            read.append(memory.sample())
            # As many as a layer of the largest size needs.
            dot.append(dots(sparse.heads, sparse.proxy_dim, sizes[-1] // sparse.region))
            say(f"long: {name}, round {number} of {rounds}")
    return Result(
        name=name,
        config=what.config,
        sizes=tuple(found),
        read=tuple(read[1:]),
        dots=tuple(dot[1:]),
        state_bytes=engine.state.nbytes,
        predicted_bytes=footprint(what.config, context=sizes[-1], plan=what.plan).state,
        resident_bytes=grown,
    )


def _once(steps: Steps, size: Size, *, warm: bool) -> None:
    """One round of one size: the middle of a few steps of each sort."""
    position = size.positions - BACK
    whole = [steps.whole(position) for _ in range(REPEATS)]
    sliding = [steps.sliding(position) for _ in range(REPEATS)]
    parts = [steps.operators(position) for _ in range(REPEATS)]
    if warm:
        size.whole.append(statistics.median(whole))
        size.sliding.append(statistics.median(sliding))
        size.attention.append(statistics.median(part[ATTENTION] for part in parts))
        size.hot.append(statistics.median(part[HOT] for part in parts))
        size.scoring.append(statistics.median(part[SCORING] for part in parts))


def run(say: Callable[[str], object]) -> Section:
    results = [
        measure("synthetic model", subject(synthetic(say), say), say),
        measure("step5-nano", subject(NANO, say), say),
    ]
    return section(results, plot(results, DOCS / "plots" / "long-steps.png"))


def section(results: Sequence[Result], path: Path) -> Section:
    """`results` of the synthetic model, which the bars judge, and of step5-nano."""
    return Section(
        key="long",
        title="Long contexts",
        text=TEXT,
        tables=(*map(_table, results), _memory(results)),
        plots=(f"plots/{path.name}",),
        numbers=numbers(*results),
    )


def numbers(large: Result, nano: Result) -> dict[str, float]:
    last = large.sizes[-1]
    errors = [abs(one.state_bytes / one.predicted_bytes - 1) for one in (large, nano)]
    return {
        "attention_1m_over_8k": last.middle("attention") / large.size(BASE).middle("attention"),
        "scoring_of_roof": large.speed(last) / large.roof,
        "state_error": max(errors),
        # A step that does not end in tokens raises.
        "nano_positions": nano.sizes[-1].positions,
    }


def _table(result: Result) -> Table:
    sparse = result.config.sparse
    assert sparse is not None
    rows = []
    for size in result.sizes:
        speed = result.speed(size)
        scored = (f"{speed * sparse.proxy_dim / GB:.2f}", f"{speed / result.roof:.2f}")
        rows.append(
            (
                f"{size.positions:,}",
                *(
                    spread([MS * value for value in getattr(size, part)], 3)
                    for part in ("whole", "sliding", "attention", "hot", "scoring")
                ),
                f"{MS * size.rest:.3f}",
                *(scored if speed else ("", "")),
            )
        )
    read = spread([value / GB for value in result.read], 1)
    dots = spread([value / sparse.heads * sparse.proxy_dim / GB for value in result.dots], 1)
    return Table(
        title=(
            f"{result.name}, ms a step; memory is read at {read} GB/s, dot products would take "
            f"{dots} GB/s of summaries"
        ),
        columns=(
            *("positions", "step", "sliding", "attention", "attention, hot", "scoring", "rest"),
            *("summaries, GB/s", "of the roof"),
        ),
        rows=tuple(rows),
    )


def _memory(results: Sequence[Result]) -> Table:
    return Table(
        title=f"State of one sequence of {results[0].sizes[-1].positions:,} positions, MB",
        columns=("model", "predicted", "state", "state over predicted", "process grew by"),
        rows=tuple(
            (
                one.name,
                f"{one.predicted_bytes / MB:.1f}",
                f"{one.state_bytes / MB:.1f}",
                f"{one.state_bytes / one.predicted_bytes:.4f}",
                f"{one.resident_bytes / MB:.1f}",
            )
            for one in results
        ),
    )


def plot(results: Sequence[Result], path: Path) -> Path:
    """A panel a model: parts of a step by positions, both on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, panels = pyplot.subplots(1, len(results), figsize=(5 * len(results), 4), squeeze=False)
    for axes, result in zip(panels[0], results, strict=True):
        places = [size.positions for size in result.sizes]
        for part in ("whole", "sliding", "attention", "scoring"):
            values = [MS * size.middle(part) for size in result.sizes]
            axes.plot(places, values, "o-", label="step" if part == "whole" else part)
        layers, region = len(result.config.full_layers), 8
        least = [MS * layers * place / region / result.roof for place in places]
        axes.plot(places, least, "k--", linewidth=0.8, label="scoring at its roof")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(places, [_short(place) for place in places])
        axes.set_ylim(bottom=min(size.middle("attention") for size in result.sizes) * MS / 10)
        axes.set_title(result.name)
        axes.set_xlabel("positions")
        axes.set_ylabel("ms a step")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=len(labels))
    figure.savefig(path, dpi=DPI, bbox_inches="tight")
    pyplot.close(figure)
    return path


def _short(positions: int) -> str:
    return f"{positions // 2**20}M" if positions >= 2**20 else f"{positions // 2**10}k"
