"""Engine: weights, state and the step modules behind two calls, prefill and decode.

Knows slots, chunks and widths; runs the modules eagerly. Does not know stop conditions, text or who
asked. Keeps true: everything the host reads back is integers, and a slot's leftovers never reach
the next request in it, because every position is written before it is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from graphs.config import ModelConfig
from graphs.sampling import Sampling, pack_bits, words
from graphs.state import make_state
from graphs.step import DecodeStep, PrefillChunk, StepOutput
from graphs.weights import ModelWeights
from runtime.blocks import BlockPlan
from runtime.request import SamplingParams

Precision = Literal["bf16", "fp32"]
DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


class EngineError(RuntimeError):
    """A step produced something that no correct step can, such as logits that are not numbers."""


@dataclass(frozen=True, kw_only=True)
class Committed:
    """What one call committed for one slot, and the drafts for its next step."""

    tokens: tuple[int, ...]
    accepted: int
    drafts: tuple[int, ...]


class Engine:
    """Eager engines of one model over one state.

    `draft_tokens` is K, 0 to the number of MTP layers. `context` counts positions a request may
    use, prompt and answer together; `chunk` is the prefill row count.
    Raises ValueError when K exceeds what the checkpoint can draft.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        precision: Precision = "bf16",
        draft_tokens: int = 3,
        context: int = 4096,
        chunk: int = 64,
        slots: int = 1,
    ):
        if precision not in DTYPES:
            raise ValueError(f"precision = {precision!r}: must be one of {sorted(DTYPES)}")
        if not 0 <= draft_tokens <= len(weights.mtp):
            raise ValueError(
                f"draft_tokens = {draft_tokens}: this model has {len(weights.mtp)} MTP layers "
                f"loaded, so 0 to {len(weights.mtp)} tokens can be drafted a step"
            )
        # A step is thousands of small operations: a second thread gains nothing alone and, beside
        # another busy process, makes each of them wait in a barrier, 20 times as long in all.
        torch.set_num_threads(1)
        for name, value in (("context", context), ("chunk", chunk), ("slots", slots)):
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        act = DTYPES[precision]
        # The last windows of a request that fills the context reach past it; never emitted.
        reach = context + draft_tokens
        self.config, self.weights = config, weights
        self.draft_tokens, self.context, self.chunk = draft_tokens, context, chunk
        plan = BlockPlan.of(config, context=reach, largest_call=max(chunk, 1 + draft_tokens))
        self.state = make_state(
            config,
            slots=slots,
            full_blocks=slots * plan.full,
            sliding_blocks=slots * plan.sliding,
            context=reach,
            draft_tokens=draft_tokens,
            dtype=act,
            device=weights.embed.device,
        )
        for slot in range(slots):
            plan.assign(self.state, slot)
        self._decode = DecodeStep(config, draft_tokens, act)
        self._prefill = PrefillChunk(config, draft_tokens, act)

    @torch.inference_mode()
    def prefill(self, prompt: Sequence[int], slot: int, params: SamplingParams) -> Committed:
        """Load a prompt into `slot`, chunk by chunk; the first token and its drafts."""
        self.state.counts[slot] = 0
        self.state.prompt[slot] = pack_bits(prompt, self.config.vocab_size)
        sampling = self._sampling([params], rows=1)
        starts = range(0, len(prompt), self.chunk)
        outputs = [self._prefill_chunk(prompt, start, slot, sampling) for start in starts]
        [committed] = self._read(outputs[-1])
        return committed

    def _prefill_chunk(
        self, prompt: Sequence[int], start: int, slot: int, sampling: Sampling
    ) -> StepOutput:
        width = self.chunk + self.draft_tokens
        real = list(prompt[start : start + width])
        return self._prefill(
            self._ints(real + [0] * (width - len(real))),
            self._ints([min(self.chunk, len(prompt) - start)]),
            self._ints([len(real)]),
            self._ints([start]),
            self._ints([slot]),
            sampling,
            self.weights,
            self.state,
        )

    @torch.inference_mode()
    def decode(
        self,
        tokens: Sequence[Sequence[int]],
        positions: Sequence[int],
        slots: Sequence[int],
        params: Sequence[SamplingParams],
    ) -> list[Committed]:
        """One step for several slots: each row list is the last committed token and its K
        drafts."""
        output = self._decode(
            self._ints(tokens),
            self._ints(positions),
            self._ints(slots),
            self._sampling(params, rows=len(params) * (1 + self.draft_tokens)),
            self.weights,
            self.state,
        )
        return self._read(output)

    def _read(self, output: StepOutput) -> list[Committed]:
        sampled, accepted = output.sampled.tolist(), output.accepted.tolist()
        if any(token < 0 for row in sampled for token in row):
            raise EngineError("the logits of a step are not numbers (NaN)")
        columns = zip(sampled, accepted, output.drafts.tolist(), strict=True)
        return [
            Committed(tokens=tuple(row[: count + 1]), accepted=count, drafts=tuple(next_drafts))
            for row, count, next_drafts in columns
        ]

    def _sampling(self, params: Sequence[SamplingParams], rows: int) -> Sampling:
        def floats(name: str) -> torch.Tensor:
            values = [getattr(p, name) for p in params]
            return torch.tensor(values, dtype=torch.float32, device=self.weights.embed.device)

        # 64-bit seeds may be unsigned; the noise uses their bits.
        seed = self._ints([(p.seed + 2**63) % 2**64 - 2**63 for p in params])
        off = torch.zeros_like(seed, dtype=torch.float32)
        return Sampling(
            seed=seed,
            choice=self._ints([p.choice for p in params]),
            temperature=floats("temperature"),
            top_k=self._ints([p.top_k for p in params]),
            top_p=floats("top_p"),
            min_p=floats("min_p"),
            presence=off,
            frequency=off,
            repetition=off + 1,
            flags=torch.zeros_like(seed),
            mask=seed.new_zeros(rows, words(self.config.vocab_size), dtype=torch.int32),
        )

    def _ints(self, values: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.weights.embed.device)
