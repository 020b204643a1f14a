"""Where an engine's programs come from: a compiler, and the files it wrote if it writes any.

Knows the rule that a call runs only a program whose key fits its arguments. Does not know
manifests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from graphs.chain import Call
from graphs.compile.compiler import Compiler, EagerCompiler, Step
from graphs.compile.program import OpenDims, task_of


class MissingProgramError(ValueError):
    """No program fits a call: other shapes, types or options than those it was built for."""


@dataclass(frozen=True, kw_only=True)
class Programs:
    """`files` maps program keys to files; None where the compiler needs none."""

    compiler: Compiler = field(default_factory=EagerCompiler)
    files: Mapping[str, Path] | None = None

    def bind(self, call: Call, dims: OpenDims) -> Step:
        """Check the call's tensors against the program's key, once, and make it ready to run.

        Raises MissingProgramError naming the block and its key.
        """
        if self.files is None:
            return self.compiler.load(call, None)
        key = task_of(call, dims).key
        if key not in self.files:
            raise MissingProgramError(
                f"no program {key} among the {len(self.files)} of this artifact: the weights, the "
                f"state or the plan have other shapes or types than it was built for"
            )
        return self.compiler.load(call, self.files[key])
