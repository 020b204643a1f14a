"""Chains bound to memory: programs checked and loaded, host views made, graphs captured.

Knows which chain an engine call needs. Does not know what is in a slot. Keeps true: after binding
nothing is checked or allocated again; inputs start out naming the scratch slot, so that the runs
before a capture write nothing that is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from graphs.chain import Call, Model, decode_chain, observe_chain, prefill_chain
from graphs.compile.compiler import Step
from graphs.compile.program import OpenDims
from runtime.capture import HostView, Runner, make_runner
from runtime.programs import Programs


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A chain, ready. `runner` stops before the drafts; `drafting` includes them."""

    inputs: tuple[HostView, ...]
    ints: HostView  # the chain's integer outputs
    more: HostView  # logprobs, or the hits of an observation
    width: int  # rows an entry
    residual: Tensor | None  # f32 [rows, H] behind the backbone, until the next run; not observers
    runner: Runner
    drafting: Runner


class Binder:
    """Binds chains of one model; drafts stop after `draft_tokens` depths."""

    def __init__(self, model: Model, programs: Programs, draft_tokens: int):
        self._model, self._programs = model, programs
        self._dims = OpenDims(model.state)
        # The call that places the chain's rows, then one a depth.
        self._chain_length = 1 + draft_tokens if draft_tokens else 0

    def decoder(self, entries: int, width: int) -> Bound:
        chain = decode_chain(self._model, entries, width)
        chain.inputs.ints[:, 0] = self._model.state.slots
        inputs = (chain.inputs.ints, chain.inputs.mask)
        outputs = (chain.outputs.ints, chain.outputs.logprobs)
        draft = chain.draft[: self._chain_length]
        return self._bind(inputs, outputs, width, chain.verify, draft, chain.residual)

    def prefill(self, rows: int) -> Bound:
        chain = prefill_chain(self._model, rows)
        chain.inputs.ints[0] = self._model.state.slots
        inputs = (chain.inputs.ints, chain.inputs.tokens, chain.inputs.mask)
        outputs = (chain.outputs.ints, chain.outputs.logprobs)
        # The first of them remembers the rows, which drafts need whenever they are made.
        draft = chain.draft[: self._chain_length]
        verify = (*chain.verify, *draft[:1])
        return self._bind(inputs, outputs, 1, verify, draft[1:], chain.residual)

    def observer(self, rows: int) -> Bound:
        """For `rows` new rows, behind the ones that are always run again."""
        chain = observe_chain(self._model, rows)
        chain.inputs.ints[0] = self._model.state.slots
        outputs = (chain.outputs.ints, chain.hits)
        return self._bind(
            (chain.inputs.ints,), outputs, chain.rows, (), chain.calls[: self._chain_length]
        )

    def _bind(
        self,
        inputs: Sequence[Tensor],
        outputs: tuple[Tensor, Tensor],
        width: int,
        verify: Sequence[Call],
        draft: Sequence[Call],
        residual: Tensor | None = None,
    ) -> Bound:
        verify_steps = self._load(verify)
        all_steps = verify_steps + self._load(draft)
        views = tuple(HostView.of(tensor) for tensor in inputs)
        ints, more = (HostView.of(tensor) for tensor in outputs)
        return Bound(
            inputs=views,
            ints=ints,
            more=more,
            width=width,
            residual=residual,
            runner=make_runner(verify_steps, views, (ints, more)),
            drafting=make_runner(all_steps, views, (ints, more)),
        )

    def _load(self, calls: Sequence[Call]) -> list[Step]:
        return [self._programs.bind(call, self._dims) for call in calls]
