"""Runs every program beside its block and compares: a program that differs is not an artifact.

A program must leave the same bits as its block run eagerly with the same operators, in every tensor
it can write; and, where that is affordable, agree with the operators' references. Knows chains, not
what they are for. Keeps true: a program is checked on the values its predecessors left, padding
included, and nothing is written for one that failed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphs.chain import Call, Model, decode_chain, observe_chain, prefill_chain
from graphs.compile.compiler import Step
from graphs.ops.library import References
from graphs.plan import MAX_WIDTH, EnginePlan
from graphs.trees import tensors_of

REFERENCE_ROWS = 4  # a reference decodes every expert that its rows choose: few rows, few experts
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
TOLERANCE = {torch.bfloat16: 0.06, torch.float32: 2e-3}


class ProgramError(RuntimeError):
    """A compiled program computed something else than its block."""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A chain with its inputs set; `rows` of all entries together."""

    kind: str
    batch: int
    rows: int
    calls: tuple[Call, ...]

    @property
    def affordable(self) -> bool:
        """Whether the references can run it; they may treat padding rows otherwise, so none."""
        return self.kind == "decode" and self.batch == 1 and self.rows <= REFERENCE_ROWS

    @property
    def name(self) -> str:
        return f"{self.kind} {self.rows // self.batch} x {self.batch}"


def exercises(model: Model, plan: EnginePlan) -> Iterator[Exercise]:
    """Every engine of the plan once, on random tokens; prefill first, so that there are keys."""
    generator = torch.Generator().manual_seed(7)
    vocab = model.config.vocab_size

    def ids(*shape: int) -> Tensor:
        return torch.randint(vocab, shape, generator=generator)

    for rows in plan.prefill:
        chain = prefill_chain(model, rows)
        chain.inputs.tokens.copy_(ids(len(chain.inputs.tokens)))
        used = max(1, rows - 3)
        chain.inputs.ints.copy_(torch.tensor([0, 0, used, used]))
        calls = (*chain.verify, *chain.draft)
        yield Exercise(kind="prefill", batch=1, rows=rows, calls=calls)
    for entries in plan.batches:
        for width in plan.widths:
            chain = decode_chain(model, entries, width)
            slot = torch.arange(entries)
            # One entry in full; several with fewer drafts, the last one padding.
            drafted = torch.full_like(slot, width - 1) if entries == 1 else slot % width
            place = torch.stack([slot, 9 + 5 * slot, drafted], dim=1)
            if entries > 1:
                place[-1, 0] = model.state.slots
            chain.inputs.ints.copy_(torch.cat([place, ids(entries, MAX_WIDTH)], dim=1))
            calls = (*chain.verify, *chain.draft)
            yield Exercise(kind="decode", batch=entries, rows=entries * width, calls=calls)
    for rows in plan.observed if model.depths else ():
        observed = observe_chain(model, rows)
        first = observed.rows - rows
        observed.inputs.ints.copy_(torch.tensor([0, plan.prefill[-1] - 4, first]))
        yield Exercise(kind="observe", batch=1, rows=observed.rows, calls=observed.calls)


@torch.inference_mode()
def check_program(call: Call, program: Step, weights: Sequence[Tensor], *, reference: bool) -> None:
    """Run the block, its reference and the program from the same start; leave the block's result.

    Raises ProgramError.
    """
    held = {id(tensor) for tensor in weights}
    tensors = [tensor for tensor in call.tensors if id(tensor) not in held]
    before = [tensor.clone() for tensor in tensors]

    def after(run: Callable[[], object]) -> list[Tensor]:
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)
        run()
        return [tensor.clone() for tensor in tensors]

    compiled = after(program)
    slow = after(lambda: _referenced(call)) if reference else None
    eager = after(lambda: call.block(*call.args))
    for got, expected in zip(compiled, eager, strict=True):
        if not _same_bits(got, expected):
            raise ProgramError(f"{call.block.name}: the program and its block differ")
    if slow is not None:
        _compare(call, before, eager, slow)


def _referenced(call: Call) -> None:
    with References():
        call.block(*call.args)


def _compare(call: Call, before: list[Tensor], got: list[Tensor], slow: list[Tensor]) -> None:
    """The change that the operators made is the references' to within rounding."""
    for old, new, expected in zip(before, got, slow, strict=True):
        if not old.is_floating_point() or old.dtype.itemsize < 2:
            continue
        change = (expected.double() - old.double()).norm()
        error = (new.double() - expected.double()).norm()
        if not error <= TOLERANCE[call.block.act] * change:
            raise ProgramError(
                f"{call.block.name}: the kernels are {float(error / change):.3g} away from their "
                f"references in a tensor {list(new.shape)}"
            )


def weight_tensors(model: Model) -> list[Tensor]:
    return tensors_of((model.weights, model.frequencies))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    bits = _BITS[one.dtype.itemsize]
    return torch.equal(one.view(bits), other.view(bits))
