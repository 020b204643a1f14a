"""Where an engine's programs come from: a compiler, and the files it wrote if it writes any.

Knows the rule that a call runs only a program whose key fits its arguments, and how an artifact is
loaded. Keeps true: native code is loaded only after the artifact's digests agreed.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from graphs.artifact import Artifact
from graphs.chain import Call
from graphs.compile.compiler import Compiler, EagerCompiler, Step
from graphs.compile.inductor import InductorCompiler
from graphs.compile.program import OpenDims, task_of
from graphs.errors import ArtifactError
from graphs.manifest import rebuild
from graphs.ops.build import load_kernels, set_isa, set_threads

COMPILERS: Mapping[str, Callable[[str], Compiler]] = {
    EagerCompiler.name: EagerCompiler,
    InductorCompiler.name: InductorCompiler,
}


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


def programs_of(artifact: Artifact) -> Programs:
    """Load the artifact's kernels into this process and offer its programs.

    The kernels get one thread a processor that this process may use. Raises ArtifactError for a
    compiler that is not known here.
    """
    manifest = artifact.manifest
    if manifest.compiler not in COMPILERS:
        raise ArtifactError(
            f"{artifact.folder}: compiler: {manifest.compiler} is none of {', '.join(COMPILERS)}. "
            f"{rebuild(artifact.folder)}"
        )
    load_kernels(artifact.kernels)
    set_isa(manifest.machine.isa)
    set_threads(len(os.sched_getaffinity(0)))
    compiler = COMPILERS[manifest.compiler](manifest.machine.isa)
    files = artifact.programs if manifest.compiler != EagerCompiler.name else None
    return Programs(compiler=compiler, files=files)
