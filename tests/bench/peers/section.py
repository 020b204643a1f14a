"""What the comparison with other programs shows, from the numbers of all rounds.

Knows which speeds are compared. Keeps true: a ratio is the median over rounds of both programs in
the same round, because the machine's speed drifts from round to round.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runtime.bench.tables import GB, Table, spread
from tests.bench.document import Section
from tests.bench.peers.scenario import ACCEPTANCE, DRAFTS, GENERATE, PREFIX, THREADS

OURS, LLAMA, TRANSFORMERS = "fourstep", "llama.cpp", "transformers"
SPEEDS = {"decode": "plain, tokens/s", "mtp": "with MTP, tokens/s", "prefill": "prefill, rows/s"}
RATIOS = {
    "plain_over_llama": ("decode", LLAMA),
    "mtp_over_llama": ("mtp", LLAMA),
    "prefill_over_llama": ("prefill", LLAMA),
    "plain_over_transformers": ("decode", TRANSFORMERS),
    "prefill_over_transformers": ("prefill", TRANSFORMERS),
}
TEXT = f"""\
`make bench-peers` (= `python -m tests.bench.peers`): one stream on the synthetic model,
{THREADS} threads; {PREFIX} positions, then {GENERATE} tokens. With MTP: {DRAFTS} drafts a step,
{ACCEPTANCE:g} tokens committed a step on average, forced in both programs (llama.cpp:
`--spec-synth-len`). llama.cpp runs the same dims and formats as GGUF, experts in its NVFP4, its
full layers dense and without an indexer. transformers runs its eager step3p7 in bfloat16, experts
dequantised."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One program: its speeds by name, an entry a round."""

    name: str
    speeds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, measured: Mapping[str, float]) -> None:
        for name, value in measured.items():
            self.speeds.setdefault(name, []).append(value)

    def __str__(self) -> str:
        """The last round, for progress."""
        return f"{self.name} " + ", ".join(f"{k} {v[-1]:.1f}" for k, v in self.speeds.items())


def section(contenders: Sequence[Contender], roof: Sequence[float]) -> Section:
    """The tables and the ratios; `roof` holds samples of memory speed in bytes a second."""
    by_name = {contender.name: contender.speeds for contender in contenders}
    ours = by_name[OURS]
    found = {
        number: [us / them for us, them in zip(ours[speed], by_name[name][speed], strict=True)]
        for number, (speed, name) in RATIOS.items()
    }
    speeds = Table(
        title=f"Memory read at {spread([sample / GB for sample in roof], 1)} GB/s",
        columns=("program", *SPEEDS.values()),
        rows=tuple(
            (name, *(spread(each[s], 1) if s in each else "" for s in SPEEDS))
            for name, each in by_name.items()
        ),
    )
    compared = Table(
        title=f"{OURS} over the others",
        columns=("", *SPEEDS.values()),
        rows=tuple(
            (f"over {name}", *(_ratio(found, speed, name) for speed in SPEEDS))
            for name in (LLAMA, TRANSFORMERS)
        ),
    )
    return Section(
        key="peers",
        title="Other programs",
        text=TEXT,
        tables=(speeds, compared),
        numbers={number: statistics.median(values) for number, values in found.items()},
    )


def _ratio(found: Mapping[str, Sequence[float]], speed: str, name: str) -> str:
    numbers = [number for number, pair in RATIOS.items() if pair == (speed, name)]
    return spread(found[numbers[0]], 2) if numbers else ""
