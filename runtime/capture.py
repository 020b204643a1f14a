"""Runs a chain of bound calls: one after another, or on a GPU as one captured graph.

Knows streams and CUDA graphs. Keeps true: a chain is captured when it is made, never later; every
shape has a graph of its own; host memory that a graph reads or writes keeps its address.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphs.compile.compiler import Step
from graphs.compile.inductor import joined

WARM_UP = 2  # runs before a capture: libraries choose algorithms and allocate at the first


@dataclass(frozen=True, kw_only=True)
class HostView:
    """A device tensor and host memory for it: the same memory on a CPU, pinned on a GPU."""

    device: Tensor
    host: Tensor
    array: "np.ndarray[Any, np.dtype[Any]]"

    @classmethod
    def of(cls, tensor: Tensor) -> "HostView":
        host = tensor.cpu().pin_memory() if tensor.is_cuda else tensor
        return cls(device=tensor, host=host, array=host.numpy())

    def upload(self) -> None:
        if self.host is not self.device:
            self.device.copy_(self.host, non_blocking=True)

    def download(self) -> None:
        if self.host is not self.device:
            self.host.copy_(self.device, non_blocking=True)


class Runner:
    """A chain, its inputs on the host and its outputs; `run` returns when the outputs are there."""

    captured = False

    def __init__(
        self, steps: Sequence[Step], inputs: Sequence[HostView], outputs: Sequence[HostView]
    ):
        self._run = joined(steps)

    def run(self) -> None:
        self._run()


class CapturedRunner(Runner):
    """The same as one CUDA graph, copies from and to the host included."""

    captured = True

    def __init__(
        self, steps: Sequence[Step], inputs: Sequence[HostView], outputs: Sequence[HostView]
    ):
        super().__init__(steps, inputs, outputs)
        self._stream = torch.cuda.Stream()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP):
                self._copy_and_run(inputs, outputs)
        self._stream.synchronize()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._copy_and_run(inputs, outputs)

    def _copy_and_run(self, inputs: Sequence[HostView], outputs: Sequence[HostView]) -> None:
        for view in inputs:
            view.upload()
        super().run()
        for view in outputs:
            view.download()

    def run(self) -> None:
        # Behind what the host has just written with operators of its own, such as block tables.
        self._graph.replay()
        torch.cuda.current_stream().synchronize()


def make_runner(
    steps: Sequence[Step], inputs: Sequence[HostView], outputs: Sequence[HostView]
) -> Runner:
    """Captured where the inputs live on a GPU."""
    on_gpu = inputs[0].device.is_cuda
    return (CapturedRunner if on_gpu else Runner)(steps, inputs, outputs)
