"""The inductor compiler: AOTInductor programs, weights and state as inputs.

Knows torch.export, and our own library that loads programs (ops/cpu/bind_program.cpp). A program
checks neither shapes nor types nor the machine it runs on, so both were settled by the caller: the
key covers the arguments, the manifest the rest. Keeps true: generated code runs on one thread (the
kernels have a pool of their own) and does element-wise exact work alone: every sum and every
transcendental is in an operator; while it runs, other threads run Python.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from graphs.chain import Call
from graphs.compile.compiler import Step
from graphs.compile.native import Sources, build
from graphs.compile.program import Task, TensorSpec
from graphs.trees import tensors_of

_OPTIONS = {
    "cpp.threads": 1,
    "cpp.vec_isa_ok": True,  # what the processor has was asked before; a compiler takes 20 s to say
    "compile_threads": 1,
    "aot_inductor.enable_line_tables": False,
    # native.py compiles, and reads headers in its own way.
    "aot_inductor.package_cpp_only": True,
    "aot_inductor.precompile_headers": False,
    "size_asserts": False,  # they ask for an environment variable, and the key has settled sizes
}
# Without these the generated code would use whatever the building machine has.
_ISA_OPTIONS = {
    "avx512": {"cpp.simdlen": 512, "cpp.march": "x86-64-v4"},
    "avx2": {"cpp.simdlen": 256, "cpp.march": "x86-64-v3"},
    "scalar": {"cpp.simdlen": 1},
}


class InductorCompiler:
    """Compiles for one instruction set of ops/build.py."""

    name = "inductor"

    def __init__(self, isa: str):
        self.isa = isa

    def compile(self, task: Task, folder: Path) -> Path:
        from torch._inductor import aoti_compile_and_package

        package, library = (folder / f"{task.key}{suffix}" for suffix in (".pt2", ".so"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
            program = export(task)
            options = {**_OPTIONS, **_ISA_OPTIONS[self.isa]}
            aoti_compile_and_package(program, package_path=str(package), inductor_configs=options)
        build(Sources.read(package), library)
        package.unlink()
        return library

    def load(self, call: Call, program: Path | None) -> Step:
        assert program is not None
        # A name alone would be looked for among the system's libraries.
        return Bound(torch.classes.fourstep.Program(str(program.absolute()), call.tensors))


@dataclass(frozen=True)
class Bound:
    """A loaded program with its tensors."""

    program: Any

    def __call__(self) -> None:
        self.program.run()


def joined(steps: Sequence[Step]) -> Step:
    """One call that makes all of them, in order; without Python in between where it can."""
    bound = [step.program for step in steps if isinstance(step, Bound)]
    if bound and len(bound) == len(steps):
        return torch.classes.fourstep.Chain(bound).run
    kept = tuple(steps)

    def run() -> None:
        for step in kept:
            step()

    return run


def export(task: Task) -> torch.export.ExportedProgram:
    """The block as a graph for exactly these shapes, open dimensions symbolic."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        args = tree_map_only(TensorSpec, TensorSpec.empty, task.args)
    specs = [leaf for leaf in tree_leaves(task.args) if isinstance(leaf, TensorSpec)]
    shapes = torch.export.ShapesCollection()
    for tensor, spec in zip(tensors_of(args), specs, strict=True):
        if spec.open:
            shapes[tensor] = dict.fromkeys(spec.open, torch.export.Dim.AUTO)
    dynamic = shapes.dynamic_shapes(task.block, args)
    return torch.export.export(task.block, args, dynamic_shapes=dynamic, strict=False)
