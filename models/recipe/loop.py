"""The training loop that both stages share: batches, steps, schedule, checkpoints, curve.

Knows nothing of a stage's loss. Keeps true: the batch of a step depends on (seed, step) alone
and a checkpoint holds weights, optimizer, step and curve, so an interrupted run continues bit-equal
on CPU; a checkpoint appears under its name only when it is complete.
"""

import csv
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from models.recipe.data import ROW, Data, batch_at
from models.recipe.optim import Optimizer
from models.recipe.recipe import Recipe, Schedule

Phase = tuple[bool, ...]
EAGER_STEPS = 3  # real steps before a phase is captured, so that lazy set-up is done


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A batch on the device: fixed memory that every step refills."""

    tokens: Tensor
    starts: Tensor
    weights: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> "Inputs":
        return cls(
            tokens=torch.zeros(rows, ROW + 1, dtype=torch.int64, device=device),
            starts=torch.zeros(rows, ROW, dtype=torch.int64, device=device),
            weights=torch.zeros(rows, ROW, device=device),
        )


class Stage(Protocol):
    """One stage: what it trains and what a step's loss is."""

    name: str
    stream: int  # which stream of batches: two stages never see the same order
    metric_names: tuple[str, ...]
    schedule: Schedule
    parameters: Mapping[str, Tensor]
    constants: Mapping[str, Tensor]

    def phase(self, step: int) -> Phase: ...

    def loss(self, inputs: Inputs, phase: Phase) -> tuple[Tensor, Tensor]:
        """The loss to minimise and the metrics, float32 [len(metric_names)]."""
        ...

    def after_step(self) -> None:
        """Updates outside the gradient, in place."""
        ...

    def evaluate(self) -> dict[str, float]: ...


class StepRunner:
    """Runs a step's body: directly on CPU, as one captured graph per phase on CUDA."""

    def __init__(self, body: Callable[[Phase], None], *, capture: bool) -> None:
        self.body, self.capture = body, capture
        self.seen: dict[Phase, int] = {}
        self.graphs: dict[Phase, torch.cuda.CUDAGraph] = {}

    def __call__(self, phase: Phase) -> None:
        if not self.capture:
            self.body(phase)
        elif self.seen.setdefault(phase, 0) < EAGER_STEPS:
            self.seen[phase] += 1
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.body(phase)
            torch.cuda.current_stream().wait_stream(stream)
        else:
            if phase not in self.graphs:
                self.graphs.clear()  # phases follow one another: the old graph's memory is free
                self.graphs[phase] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graphs[phase]):
                    self.body(phase)
            self.graphs[phase].replay()


class Loop:
    """Trains one stage to its last step, from its checkpoint when there is one."""

    def __init__(
        self, stage: Stage, data: Data, recipe: Recipe, work: Path, device: torch.device,
        *, capture: bool,
    ) -> None:  # fmt: skip
        self.stage, self.data, self.recipe, self.work = stage, data, recipe, work
        self.inputs = Inputs.empty(stage.schedule.rows, device)
        for p in stage.parameters.values():
            p.requires_grad_(True)
        self.optimizer = Optimizer(
            stage.parameters,
            weight_decay=recipe.weight_decay,
            embedding_factor=recipe.embedding_factor,
        )
        self.metrics = torch.zeros(len(stage.metric_names), device=device)
        self.runner = StepRunner(self._body, capture=capture)
        self.step = 0
        self.curve: list[dict[str, float]] = []

    @property
    def checkpoint(self) -> Path:
        return self.work / f"{self.stage.name}.pt"

    def _body(self, phase: Phase) -> None:
        loss, metrics = self.stage.loss(self.inputs, phase)
        names = list(self.stage.parameters)
        grads = torch.autograd.grad(loss, [self.stage.parameters[name] for name in names])
        self.optimizer.step(dict(zip(names, grads, strict=True)))
        self.stage.after_step()
        self.metrics.add_(metrics.detach())

    def _state(self) -> dict[str, Any]:
        return {
            "recipe": dataclasses.asdict(self.recipe),
            "step": self.step,
            "curve": self.curve,
            "parameters": {n: p.detach() for n, p in self.stage.parameters.items()},
            "constants": dict(self.stage.constants),
            "optimizer": self.optimizer.state,
            "metrics": self.metrics,
        }

    def save(self) -> None:
        """Write the checkpoint atomically, and the curve as CSV beside it."""
        part = self.checkpoint.with_suffix(".part")
        torch.save(self._state(), part)
        part.replace(self.checkpoint)
        _write_csv(self.work / f"{self.stage.name}.csv", self.curve)

    def resume(self) -> None:
        """Continue from the checkpoint. Raises ValueError when it is another recipe's."""
        if not self.checkpoint.exists():
            return
        device = self.metrics.device
        saved = torch.load(self.checkpoint, map_location=device, weights_only=True)
        if saved["recipe"] != dataclasses.asdict(self.recipe):
            raise ValueError(f"{self.checkpoint} was made by another recipe: remove it or --work")
        self.step, self.curve = saved["step"], saved["curve"]
        with torch.no_grad():
            _copy_all(self.stage.parameters, saved["parameters"])
            _copy_all(self.stage.constants, saved["constants"])
            _copy_all(self.optimizer.state, saved["optimizer"])
            self.metrics.copy_(saved["metrics"])

    def run(self, until: int | None = None) -> None:
        """Train up to step `until` (the schedule's end when None), reporting and saving."""
        self.resume()
        recipe, schedule = self.recipe, self.stage.schedule
        last = schedule.steps if until is None else until
        begun, first = time.monotonic(), self.step
        while self.step < last:
            self._one_step(schedule)
            done = self.step == schedule.steps
            if self.step % recipe.report_every == 0 or done:
                row = self._read_metrics()
                if self.step % schedule.evaluate_every == 0 or done:
                    row |= self.stage.evaluate()
                self.curve.append(row)
                rate = (self.step - first) / (time.monotonic() - begun)
                _print_row(self.stage.name, row, schedule, rate)
            if self.step % recipe.save_every == 0 or self.step == last:
                self.save()

    def _one_step(self, schedule: Schedule) -> None:
        recipe, inputs = self.recipe, self.inputs
        seed = recipe.seed + self.stage.stream
        batch = batch_at(self.data, seed, self.step, schedule.rows, schedule.chat_rows)
        inputs.tokens.copy_(torch.from_numpy(batch.tokens))
        inputs.starts.copy_(torch.from_numpy(batch.starts))
        inputs.weights.copy_(torch.from_numpy(batch.weights))
        factor = schedule.factor(self.step)
        rates = torch.tensor([schedule.muon_rate * factor, schedule.adam_rate * factor])
        self.optimizer.rates.copy_(rates)
        self.runner(self.stage.phase(self.step))
        self.step += 1

    def _read_metrics(self) -> dict[str, float]:
        since = self.step - (int(self.curve[-1]["step"]) if self.curve else 0)
        values = (self.metrics / since).tolist()
        self.metrics.zero_()
        return {"step": float(self.step)} | dict(zip(self.stage.metric_names, values, strict=True))


def _copy_all(into: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    assert into.keys() == values.keys()
    for name, tensor in into.items():
        tensor.copy_(values[name])


def _write_csv(path: Path, rows: Iterable[dict[str, float]]) -> None:
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({k: f"{v:.5g}" for k, v in row.items()} for row in rows)


def _print_row(name: str, row: dict[str, float], schedule: Schedule, rate: float) -> None:
    left = (schedule.steps - row["step"]) / rate
    values = "  ".join(f"{k} {v:.3f}" for k, v in row.items() if k != "step")
    speed = f"{rate * schedule.rows * ROW:,.0f} tok/s  {left / 60:.1f} min left"
    sys.stdout.write(f"{name} {row['step']:.0f}/{schedule.steps}  {speed}  {values}\n")
    sys.stdout.flush()
