"""The Compiler interface, and the eager one.

A compiler turns a task into files in a folder, and a call into something that runs. Knows nothing
of models. Keeps true: a loaded call takes no arguments and allocates nothing that outlives it; its
tensors were checked against the program's key before it was loaded.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from graphs.chain import Call
from graphs.compile.program import Task

Step = Callable[[], object]


class Compiler(Protocol):
    name: str

    def compile(self, task: Task, folder: Path) -> Path | None:
        """Write the task's program into `folder`, in files named by its key. The one that `load`
        takes; None if it needs none."""
        ...

    def load(self, call: Call, program: Path | None) -> Step:
        """The call, ready to run."""
        ...


class EagerCompiler:
    """Runs blocks as they are written, operator by operator: the reference of every other.

    The kernels' instruction set is the operators' own business.
    """

    name = "eager"

    def __init__(self, isa: str = ""):
        self.isa = isa

    def compile(self, task: Task, folder: Path) -> Path | None:
        return None

    def load(self, call: Call, program: Path | None) -> Step:
        return lambda: call.block(*call.args)
