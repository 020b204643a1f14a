"""Decode steps at any position of a state that was filled with noise instead of a prompt.

Knows which tensors hold what a step reads of its past, how long each part of a step takes, and how
much of one operator is in it. Does not know what is compared. Keeps true: the state is the engine's
own, all of it mapped and written; what an operator takes is timed inside a whole step, with the
caches as the rest of the step leaves them, and what attention takes when called again at once, its
keys still in the caches, is told apart.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphs.formats import to_e4m3
from graphs.state import State
from runtime.bench.kinds import StepProfile
from runtime.bench.run import Subject
from runtime.engine import Engine
from runtime.exchange import Turn
from runtime.programs import Programs

SCORING, ATTENTION = "fourstep::select_regions", "fourstep::region_attention"
HOT = "region_attention again"  # with the same arguments, at once
SLIDING = "sliding"  # how the names of those kinds of layers begin
_CHUNK = 256  # blocks of noise


def fill(state: State, seed: int = 0) -> None:
    """Write every key, value, summary and ring row, in place. Summaries are all different, so that
    scores do not tie; keys and values repeat after a while."""
    draw = torch.Generator().manual_seed(seed)
    for pool in state.layers:
        noise = torch.randn(min(_CHUNK, len(pool)), *pool.shape[1:], generator=draw)
        for part in pool.split(_CHUNK):
            part.copy_(noise[: len(part)])
    for indexer in state.indexers:
        if indexer is None:
            continue
        for part in indexer.summary.split(_CHUNK):
            part.copy_(to_e4m3(torch.randn(part.shape, generator=draw)))
        for ring in (indexer.ring_k, indexer.ring_z):
            ring.copy_(torch.randn(ring.shape, generator=draw))


def turn(position: int, width: int) -> Turn:
    """A step of `width` rows in slot 0, the first at `position`."""
    return Turn(slot=0, position=position, token=1, drafts=tuple(range(2, 1 + width)))


class OperatorTimes(TorchDispatchMode):
    """Within this context, seconds by operator of what runs eagerly."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = {SCORING: 0.0, ATTENTION: 0.0, HOT: 0.0}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.name()
        if name not in self.seconds:
            return func(*args, **(kwargs or {}))
        call = partial(func, *args, **(kwargs or {}))
        made = self._timed(name, call)
        if name == ATTENTION:
            self._timed(HOT, call)
        return made

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        made = call()
        self.seconds[name] += time.perf_counter() - start
        return made


class Steps:
    """Whole steps, kinds of blocks and operators of one engine, `width` rows a step and no
    drafting."""

    def __init__(self, engine: Engine, subject: Subject, width: int) -> None:
        self._engine, self._width = engine, width
        shape = {"width": width, "depths": 0, "entries": 1}
        self._kinds = StepProfile(engine, subject.programs, **shape)
        self._eager = StepProfile(engine, Programs(), **shape)

    def whole(self, position: int) -> float:
        """Seconds of a step. Raises EngineError if it does not end in tokens."""
        start = time.perf_counter()
        self._engine.decode([turn(position, self._width)], draft=False)
        return time.perf_counter() - start

    def sliding(self, position: int) -> float:
        """Seconds of its sliding layers."""
        kinds = self._kinds.run([turn(position, self._width)], 1)
        return sum(kind.seconds[0] for kind in kinds if kind.kind.startswith(SLIDING))

    def operators(self, position: int) -> dict[str, float]:
        """Seconds of its scoring and its sparse attention, and of that once more."""
        with OperatorTimes() as times:
            self._eager.run([turn(position, self._width)], 1)
        return times.seconds


def resident() -> int:
    """Bytes of this process in memory now. Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmRSS")
