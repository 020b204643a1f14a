"""The bars this version was built to reach, and how the measured numbers stand against them.

Knows each bar's wording, its limit and the number it is judged by, named as sections name their
numbers. Keeps true: a number that was not measured is said to be missing, never taken as reached.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.bench.tables import Table

Numbers = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """`limit` is the least value, or the most where `most` is set."""

    measure: str
    section: str
    number: str
    limit: float
    unit: str = ""
    most: bool = False
    digits: int = 2

    def reached(self, value: float) -> bool:
        return value <= self.limit if self.most else value >= self.limit

    def row(self, numbers: Numbers) -> tuple[str, ...]:
        wanted = f"{'at most' if self.most else 'at least'} {self.limit:g}{self.unit}"
        value = numbers.get(self.section, {}).get(self.number)
        if value is None:
            return self.measure, wanted, "not measured", ""
        said = "yes" if self.reached(value) else "no"
        return self.measure, wanted, f"{value:.{self.digits}f}{self.unit}", said


BARS = (
    Bar(
        measure="synthetic model, plain decoding: share of memory read speed",
        section="synthetic",
        number="plain_memory_share",
        limit=0.80,
    ),
    Bar(
        measure="plain decoding over llama.cpp",
        section="peers",
        number="plain_over_llama",
        limit=1.2,
        unit=" x",
    ),
    Bar(
        measure="step time of width 4 over width 1, over the ratio of bytes",
        section="synthetic",
        number="width_4_time_over_bytes",
        limit=1.10,
        unit=" x",
        most=True,
    ),
    Bar(
        measure="3 tokens a step forced: gain over plain, of what the bytes allow",
        section="synthetic",
        number="gain_of_allowed",
        limit=0.90,
    ),
    Bar(
        measure="3 tokens a step forced, over llama.cpp's MTP at --spec-synth-len 3",
        section="peers",
        number="mtp_over_llama",
        limit=1.8,
        unit=" x",
    ),
    Bar(
        measure="prefill of 256 rows over llama.cpp's pp256",
        section="peers",
        number="prefill_over_llama",
        limit=1.3,
        unit=" x",
    ),
    Bar(
        measure="plain decoding over transformers, eager",
        section="peers",
        number="plain_over_transformers",
        limit=5,
        unit=" x",
    ),
    Bar(
        measure="step5-nano, K = 3: tokens a second over the eager path",
        section="nano",
        number="over_eager",
        limit=4,
        unit=" x",
    ),
    Bar(
        measure="step5-nano, K = 3: host time a step",
        section="nano",
        number="host_us",
        limit=150,
        unit=" us",
        most=True,
        digits=0,
    ),
    *(
        Bar(
            measure=f"width policy on {kind}: tokens a second over the best fixed number's",
            section="nano",
            number=f"auto_of_best_{kind}",
            limit=0.97,
        )
        for kind in ("noise", "code", "chat")
    ),
    Bar(
        measure="first build of step5-nano's engines",
        section="build",
        number="nano_s",
        limit=240,
        unit=" s",
        most=True,
        digits=0,
    ),
    Bar(
        measure="built artifact: loading it to the first token",
        section="start",
        number="loaded_token_s",
        limit=2,
        unit=" s",
        most=True,
    ),
    Bar(
        measure="92 layers of real width: packages over step5-nano's",
        section="build",
        number="release_packages_over_nano",
        limit=1,
        unit=" x",
        most=True,
    ),
    Bar(
        measure="92 layers of real width: build time over step5-nano's",
        section="build",
        number="release_time_over_nano",
        limit=3,
        unit=" x",
        most=True,
    ),
    Bar(
        measure="step5-nano, 8 requests at once: tokens a second over one at a time",
        section="requests",
        number="gain",
        limit=2.5,
        unit=" x",
    ),
    Bar(
        measure="scheduler and bookkeeping, a step of 8 slots",
        section="requests",
        number="host_us",
        limit=100,
        unit=" us",
        most=True,
        digits=0,
    ),
    Bar(
        measure="first token of a cached prompt of 4,096 tokens over the cold one's",
        section="requests",
        number="cached_of_cold",
        limit=0.15,
        most=True,
    ),
    Bar(
        measure="memory after 10,000 requests over that after 1,000",
        section="requests",
        number="memory_growth",
        limit=1.01,
        unit=" x",
        most=True,
        digits=3,
    ),
    Bar(
        measure="sparse attention at 1,048,576 positions over 8,192, synthetic model",
        section="long",
        number="attention_1m_over_8k",
        limit=1.10,
        unit=" x",
        most=True,
    ),
    Bar(
        measure="scoring of 1,048,576 positions: share of the roof of dot products and memory",
        section="long",
        number="scoring_of_roof",
        limit=0.5,
    ),
    Bar(
        measure="state of 1,048,576 positions: bytes off what inspect predicts",
        section="long",
        number="state_error",
        limit=0.03,
        most=True,
        digits=4,
    ),
    Bar(
        measure="step5-nano decodes with a context of so many positions",
        section="long",
        number="nano_positions",
        limit=1048576,
        digits=0,
    ),
    Bar(
        measure="gRPC adds to the first token",
        section="serving",
        number="added_first_ms",
        limit=1.5,
        unit=" ms",
        most=True,
    ),
    Bar(
        measure="gRPC adds to each message",
        section="serving",
        number="added_message_ms",
        limit=0.15,
        unit=" ms",
        most=True,
        digits=3,
    ),
    Bar(
        measure="64 open streams, 8 running: streams with the right tokens",
        section="serving",
        number="streams_right",
        limit=64,
        digits=0,
    ),
    Bar(
        measure="64 open streams, 8 running: later ones that are served before one",
        section="serving",
        number="overtaken",
        limit=16,
        most=True,
        digits=0,
    ),
    Bar(
        measure="200 refusals a second: pace of running streams over that without",
        section="serving",
        number="pace_beside_refusals",
        limit=0.90,
    ),
    Bar(
        measure="idle server: processor time",
        section="serving",
        number="idle_percent",
        limit=1,
        unit=" %",
        most=True,
    ),
)


def bars_table(numbers: Numbers) -> Table:
    return Table(
        title="Bars",
        columns=("measure", "bar", "measured", "reached"),
        rows=tuple(bar.row(numbers) for bar in BARS),
    )
