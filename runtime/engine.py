"""Engine: weights, state and chains of programs behind three calls: prefill, decode, observe.

Knows slots, chunks and widths. Does not know stop conditions, text or who asked. Keeps true: every
chain is bound, and on a GPU captured, when the engine is made; everything the host reads back is a
few numbers; a slot's leftovers never reach the next request in it, because every position is
written before it is read.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

import torch

from graphs.buffers import ACCEPTED
from graphs.chain import Model
from graphs.config import ModelConfig
from graphs.draft_blocks import looked_rows
from graphs.layers.rope import frequencies
from graphs.plan import EnginePlan, smallest
from graphs.sampling import MASK
from graphs.weights import ModelWeights
from runtime.blocks import slot_state
from runtime.bound import Binder, Bound
from runtime.capture import Runner
from runtime.catch_up import CatchUp
from runtime.exchange import Committed, Mask, Observed, Turn
from runtime.logprobs import TokenLogprobs, logprobs_of
from runtime.pools import PoolSizes
from runtime.processors import Processors
from runtime.programs import Programs
from runtime.request import SamplingParams
from runtime.seat import seat
from runtime.turns import aside

Precision = Literal["bf16", "fp32"]
DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


class EngineError(RuntimeError):
    """A step produced something that no correct step can, such as logits that are not numbers."""


class Engine:
    """The engines of one model over one state.

    `draft_tokens` is K, 0 to the number of MTP layers: the most drafts a step. `context` counts
    positions a request may use, prompt and answer together. With `pools` somebody maps the slots'
    blocks (runtime.memory), else each slot has its own for all of the context. Without `programs`
    the blocks run eagerly. `processors`: what calls leave to others. Raises ValueError for what
    does not fit the model or the plan.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        programs: Programs | None = None,
        plan: EnginePlan | None = None,
        precision: Precision = "bf16",
        draft_tokens: int = 3,
        context: int = 4096,
        slots: int = 1,
        pools: PoolSizes | None = None,
        processors: Processors | None = None,
    ):
        _check(weights, precision, draft_tokens, context, slots)
        # Nothing here is worth a second thread of torch's: the kernels have a pool of their own.
        torch.set_num_threads(1)
        plan = plan or EnginePlan()
        programs = programs or Programs()
        self.config, self.weights, self.plan = config, weights, plan
        self._processors = processors
        self.draft_tokens, self.context = draft_tokens, context
        act, depths = DTYPES[precision], len(weights.mtp)
        observed = plan.observed if draft_tokens else ()
        self.catch_up = CatchUp.of(config, depths, observed)
        self.pools = pools
        self.largest_call = self.catch_up.largest_call(plan, depths)
        # The last windows of a request that fills the context reach past it; never emitted.
        self.state = slot_state(
            config,
            pools,
            slots=slots,
            context=context + plan.widths[-1],
            largest_call=self.largest_call,
            draft_tokens=depths,
            dtype=act,
            device=weights.embed.device,
        )
        self.model = Model(
            config=config,
            act=act,
            weights=weights,
            state=self.state,
            frequencies=frequencies(config, weights.embed.device),
        )
        self._masked: set[int] = set()  # slots whose flags say MASK
        # The residual of the last prefill or decode, and the row of each entry's first new token.
        self._left: tuple[torch.Tensor | None, Sequence[int]] = (None, ())
        self._widths = plan.widths_for(draft_tokens)
        self._batches = _batches(plan, slots)
        binder = Binder(self.model, programs, draft_tokens)
        with torch.inference_mode():
            self._decoders = {
                (entries, width): binder.decoder(entries, width)
                for entries in self._batches
                for width in self._widths
            }
            # Decode steps that were run, by (batch, width, whether it drafted).
            self.steps = {(*shape, draft): 0 for shape in self._decoders for draft in (False, True)}
            self._prefills = {rows: binder.prefill(rows) for rows in plan.prefill}
            self._observers = {rows: binder.observer(rows) for rows in observed}

    def describe(self) -> Iterator[tuple[str, bool]]:
        """Each engine by name, and whether it runs as one captured graph."""
        for (entries, width), bound in self._decoders.items():
            yield f"decode width {width} batch {entries}", bound.runner.captured
            if self.draft_tokens:
                yield f"decode width {width} batch {entries} + draft", bound.drafting.captured
        for rows, bound in self._prefills.items():
            yield f"prefill {rows}", bound.drafting.captured
        for rows, bound in self._observers.items():
            yield f"observe {rows}", bound.drafting.captured

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(batch, width) of every decode engine."""
        return tuple(self._decoders)

    @torch.inference_mode()
    def prefill(
        self, prompt: Sequence[int], slot: int, params: SamplingParams, mask: Mask | None = None
    ) -> Committed:
        """Load a prompt into `slot`, chunk by chunk; the first token and its drafts."""
        self.assign(slot, prompt, params)
        start = 0
        committed: Committed | None = None
        for rows in self.plan.chunks(len(prompt)):
            committed = self.prefill_chunk(prompt, start, rows, slot, mask)
            start += rows
        assert committed is not None, "the prompt is empty"
        return committed

    @torch.inference_mode()
    def assign(
        self, slot: int, prompt: Sequence[int], params: SamplingParams, said: Sequence[int] = ()
    ) -> None:
        """Give `slot` to a request: how it samples, and the tokens its penalties know; `said` is
        what it has answered already."""
        seat(self.state.sampling, slot, params, prompt, said)
        self._masked.discard(slot)

    @torch.inference_mode()
    def prefill_chunk(
        self,
        prompt: Sequence[int],
        start: int,
        rows: int,
        slot: int,
        mask: Mask | None = None,
        *,
        draft: bool = True,
    ) -> Committed:
        """Run up to `rows` of the prompt's positions from `start`; only the last chunk's result
        means anything. `mask` has the one row of the first token. Without `draft` the MTP layers
        have not seen the rows: see `observe`."""
        self._use_processors(alone=False)
        bound = self._prefills[rows]
        ints, tokens = bound.inputs[0].array, bound.inputs[1].array
        real = prompt[start : start + len(tokens)]
        ints[:] = (slot, start, min(rows, len(prompt) - start), len(real))
        tokens[: len(real)] = real
        tokens[len(real) :] = 0
        if self._flag(slot, mask):
            bound.inputs[2].array[:] = mask
        _run(bound.drafting if draft else bound.runner)
        if self._processors is not None:
            self._processors.rest()
        self._left = bound.residual, (int(ints[2]) - 1,)
        [committed] = self._read(bound, 1, drafting=draft)
        return committed

    @torch.inference_mode()
    def decode(self, turns: Sequence[Turn], *, draft: bool = True) -> list[Committed]:
        """One step for several slots; with `draft` (and K > 0) it ends with the next drafts."""
        width = 1 + max(len(turn.drafts) for turn in turns)
        entries = smallest(self._batches, len(turns), "batch")
        self._use_processors(alone=entries == 1)
        bound = self._decoders[entries, smallest(self._widths, width, "width")]
        idle = [Turn(slot=self.state.slots, position=0, token=0)] * (entries - len(turns))
        bound.inputs[0].array[:] = [turn.ints() for turn in (*turns, *idle)]
        for entry, turn in enumerate(turns):
            if self._flag(turn.slot, turn.mask):
                first = entry * bound.width
                bound.inputs[1].array[first : first + 1 + len(turn.drafts)] = turn.mask
        _run(bound.drafting if draft else bound.runner)
        self.steps[entries, bound.width, draft] += 1
        self._left = bound.residual, range(0, entries * bound.width, bound.width)
        return self._read(bound, len(turns), drafting=draft)

    @torch.inference_mode()
    def observe(self, slot: int, end: int, rows: int) -> Observed:
        """Catch the MTP layers up with the last `rows` committed rows of `slot`, up to position
        `end`, which were decoded without drafting.

        Some of the tokens they would have drafted are compared with those that came.
        """
        self._use_processors(alone=False)
        pieces = self.catch_up.pieces(end, rows)
        for piece in pieces:
            bound = self._observers[piece.size]
            bound.inputs[0].array[:] = (slot, piece.end, bound.width - piece.rows)
            _run(bound.drafting)
        bound, first = self._observers[pieces[-1].size], ACCEPTED + 1
        looked = min(pieces[-1].rows, looked_rows(bound.width))
        return Observed(
            hits=tuple(bound.more.array[: self.draft_tokens].tolist()),
            trials=tuple(max(0, looked - 1 - depth) for depth in range(self.draft_tokens)),
            drafts=tuple(bound.ints.array[0, first : first + self.draft_tokens].tolist()),
        )

    def top_logprobs(self, entry: int, tokens: Sequence[int], top: int) -> list[TokenLogprobs]:
        """Of the tokens that the last call committed for its `entry`-th turn (a prefill: 0), each
        with the `top` likeliest of its row."""
        residual, first = self._left
        assert residual is not None, "nothing has run"
        rows = range(first[entry], first[entry] + len(tokens))
        return logprobs_of(self.model, residual, rows, tokens, top)

    def prompt_logprobs(self, tokens: Sequence[int], top: int) -> list[TokenLogprobs]:
        """Of the prompt's tokens behind each of the first rows of the last prefill_chunk."""
        residual, _ = self._left
        assert residual is not None, "nothing has run"
        return logprobs_of(self.model, residual, range(len(tokens)), tokens, top)

    def _use_processors(self, *, alone: bool) -> None:
        if self._processors is not None:
            self._processors.use(alone=alone)

    def _flag(self, slot: int, mask: Mask | None) -> bool:
        """Whether the slot's rows read a mask; says so in its flags where that changes."""
        masked = mask is not None
        if masked != (slot in self._masked):
            self.state.sampling.params.flags[slot] ^= MASK
            self._masked ^= {slot}
        return masked

    def _read(self, bound: Bound, entries: int, *, drafting: bool) -> list[Committed]:
        first = ACCEPTED + 1
        depths = self.draft_tokens if drafting else 0
        committed = []
        rows = zip(bound.ints.array.tolist(), bound.more.array.tolist(), strict=True)
        for row, logprobs in itertools.islice(rows, entries):
            count = row[ACCEPTED]
            if min(row[: count + 1]) < 0:
                raise EngineError("the logits of a step are not numbers (NaN)")
            committed.append(
                Committed(
                    tokens=tuple(row[: count + 1]),
                    logprobs=tuple(logprobs[: count + 1]),
                    accepted=count,
                    drafts=tuple(row[first : first + depths]),
                )
            )
        return committed


def _run(runner: Runner) -> None:
    with aside():
        runner.run()


def _batches(plan: EnginePlan, slots: int) -> tuple[int, ...]:
    """The batch sizes that `slots` slots can need."""
    enough = next((size for size in plan.batches if size >= slots), plan.batches[-1])
    return tuple(size for size in plan.batches if size <= enough)


def _check(
    weights: ModelWeights, precision: Precision, draft_tokens: int, context: int, slots: int
) -> None:
    if precision not in DTYPES:
        raise ValueError(f"precision = {precision!r}: must be one of {sorted(DTYPES)}")
    if not 0 <= draft_tokens <= len(weights.mtp):
        raise ValueError(
            f"draft_tokens = {draft_tokens}: this model has {len(weights.mtp)} MTP layers "
            f"loaded, so 0 to {len(weights.mtp)} tokens can be drafted a step"
        )
    for name, value in (("context", context), ("slots", slots)):
        if value < 1:
            raise ValueError(f"{name} = {value}: must be at least 1")
