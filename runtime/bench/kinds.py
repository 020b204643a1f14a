"""Where a step's time goes: the engine's own programs, timed one block at a time.

Knows how to bind a decode chain of its own beside an engine, over the same weights and state. Keeps
true: the blocks run in the order and with the arguments of a real step, so each finds the caches as
the block before left them; kinds are named as in graphs.traffic.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from graphs.chain import Call, decode_chain
from graphs.compile.compiler import Step
from graphs.compile.program import OpenDims
from graphs.traffic import EMBED, HEAD, MTP
from runtime.engine import Engine
from runtime.exchange import Turn
from runtime.programs import Programs

_NAMES = {"decode-begin": EMBED, "decode-end": HEAD}


@dataclass(frozen=True, kw_only=True)
class KindTime:
    """`count` blocks of one kind; seconds of all of them together, one entry a run."""

    kind: str
    count: int
    seconds: tuple[float, ...]


class StepProfile:
    """A bound decode chain of `width` rows a slot for `entries` slots, `depths` MTP layers deep."""

    def __init__(
        self, engine: Engine, programs: Programs, *, width: int, depths: int, entries: int
    ):
        chain = decode_chain(engine.model, entries, width)
        calls = [*chain.verify, *(chain.draft[: 1 + depths] if depths else ())]
        dims = OpenDims(engine.state)
        with torch.inference_mode():
            self._steps: list[tuple[str, Step]] = [
                (kind_of(call), programs.bind(call, dims)) for call in calls
            ]
        self._ints = chain.inputs.ints

    @torch.inference_mode()
    def run(self, turns: Sequence[Turn], repeats: int) -> list[KindTime]:
        """Run the step again and again at the same place; nothing it commits is kept."""
        self._ints.zero_()
        for entry, turn in enumerate(turns):
            self._ints[entry] = torch.tensor(turn.ints())
        runs = [self._once() for _ in range(repeats)]
        kinds = dict.fromkeys(kind for kind, _ in self._steps)
        return [
            KindTime(
                kind=kind,
                count=sum(name == kind for name, _ in self._steps),
                seconds=tuple(run[kind] for run in runs),
            )
            for kind in kinds
        ]

    def _once(self) -> dict[str, float]:
        spent: dict[str, float] = {}
        last = time.perf_counter()
        for kind, step in self._steps:
            step()
            now = time.perf_counter()
            spent[kind] = spent.get(kind, 0.0) + now - last
            last = now
        return spent


def kind_of(call: Call) -> str:
    """The name that graphs.traffic has for a block."""
    name = call.block.name
    if name.startswith("layer-"):
        attention, feed_forward = name.removeprefix("layer-").split("-")
        return f"{attention} + {feed_forward}"
    return MTP if name.startswith("draft-") else _NAMES[name]
