"""The inductor compiler: AOTInductor programs, weights and state as inputs.

Knows torch.export, what of a package is kept, and our own library that loads it
(ops/cpu/bind_program.cpp). A program checks neither shapes nor types nor the machine it runs on, so
both were settled by the caller: the key covers the arguments, the manifest the rest. Keeps true:
generated code runs on one thread (the kernels have a pool of their own) and does element-wise exact
work alone: every sum and every transcendental is in an operator; while it runs, other threads run
Python.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from graphs.chain import Call
from graphs.compile.compiler import Step
from graphs.compile.program import Task, TensorSpec
from graphs.trees import tensors_of

_OPTIONS = {
    "cpp.threads": 1,
    "cpp.vec_isa_ok": True,  # what the processor has was asked before; a compiler takes 20 s to say
    "compile_threads": 1,
    "aot_inductor.enable_line_tables": False,
    # The wrapper calls operators. With less than this it takes a tenth of a small model's steps,
    # and no less time to compile; with more it takes half as long again to compile.
    "aot_inductor.compile_wrapper_opt_level": "Og",
    "aot_inductor.precompile_headers": False,  # a wrapper reads them no quicker
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

        package = folder / f"{task.key}.pt2"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
            program = export(task)
            options = {**_OPTIONS, **_ISA_OPTIONS[self.isa]}
            aoti_compile_and_package(program, package_path=str(package), inductor_configs=options)
        return _unpack(package)

    def load(self, call: Call, program: Path | None) -> Step:
        assert program is not None
        return Bound(torch.classes.fourstep.Program(str(program), call.tensors))


def _unpack(package: Path) -> Path:
    """The program's library, and beside it, where torch looks, what it says of the operators that
    it calls. The sources are left behind, and a loader would unpack a package for every call."""
    library = package.with_suffix(".so")
    with ZipFile(package) as parts:
        [name] = [name for name in parts.namelist() if name.endswith(library.suffix)]
        library.write_bytes(parts.read(name))
        operators = parts.read(str(Path(name).with_suffix(".json")))
    package.with_suffix(".json").write_bytes(operators)
    package.unlink()
    return library


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
