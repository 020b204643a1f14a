"""A scheduler on a tiny model, held after every step against the same requests run alone.

Knows how to make one, what each request says alone, and what must hold between two steps. Keeps
true: an answer says a beginning of what it says alone, logprobs included, has one end and nothing
after it; every block is free, a slot's, or the cache's; free blocks hold nothing that may be read,
and nobody writes to them; a slot's rows in memory have the bits of a cold run.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from graphs.cache import cache_folder
from graphs.ops.build import build_kernels, load_kernels, set_threads
from graphs.plan import EnginePlan
from graphs.state import BLOCK
from runtime import failpoints
from runtime.answer import Answer, End, Output, Phase, Request
from runtime.engine import Engine
from runtime.generate import generate
from runtime.grammar import Grammars
from runtime.logprobs import TokenLogprobs
from runtime.pools import Pool, PoolSizes
from runtime.request import SamplingParams, Step
from runtime.scheduler import Limits, Scheduler
from runtime.tokenizer import Tokenizer
from tests.graphs.random_model import VOCAB, random_model
from tests.graphs.whole import Model, golden_model

PLAN = EnginePlan(batches=(1, 2, 4), prefill=(16, 64))
CONTEXT = 448
# A window over two blocks, so that a text sees MTP rows in blocks that it did not write itself.
WIDE = "window over a block, two MTP layers"
NARROW = "four groups, NVFP4"
ROOMY = PoolSizes(full=48, sliding=64)
POISON = 1000.0  # far from any key or value


@cache
def model_of(shape: str) -> Model:
    return golden_model() if shape == "golden" else random_model(shape, seed=2)


def engine_of(shape: str, *, slots: int = 1, pools: PoolSizes | None = None) -> Engine:
    load_kernels(build_kernels(cache_folder() / "kernels"))
    set_threads(1)
    model = model_of(shape)
    return Engine(
        *(model.config, model.weights),
        plan=PLAN,
        draft_tokens=len(model.weights.mtp),
        context=CONTEXT,
        slots=slots,
        pools=pools,
    )


@cache
def lone_engine(shape: str) -> Engine:
    """One slot with blocks of its own."""
    return engine_of(shape)


@contextmanager
def nothing_fails() -> Iterator[None]:
    """Without the failpoints that are armed."""
    armed = dict(failpoints._armed)
    failpoints.arm({})
    yield
    failpoints.arm(armed)


@dataclass(kw_only=True)
class Said:
    """What came of one answer."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None
    steps: list[Step] = field(default_factory=list)
    end: End | None = None

    def add(self, step: Step, logprobs: Sequence[TokenLogprobs] | None) -> None:
        self.tokens += step.token_ids
        self.text += "".join(step.pieces)
        self.logprobs += logprobs or ()
        self.steps.append(step)

    def begins(self, alone: "Said") -> bool:
        """Whether this is a beginning of what was said alone."""
        tokens, logprobs = alone.tokens[: len(self.tokens)], alone.logprobs[: len(self.logprobs)]
        told = self.prompt_logprobs in (None, alone.prompt_logprobs)
        return told and tokens == self.tokens and logprobs == self.logprobs


@cache
def alone(
    shape: str,
    prompt: tuple[int, ...],
    params: SamplingParams,
    tokenizer: Tokenizer | None = None,
    grammars: Grammars | None = None,
) -> Said:
    """The request by itself, in an engine that knows neither blocks nor caches."""
    engine, said = lone_engine(shape), Said()
    steps = generate(engine, prompt, params, tokenizer=tokenizer, grammars=grammars)
    for step in steps:
        top = params.logprobs
        said.add(step, None if top is None else engine.top_logprobs(0, step.token_ids, top))
    if params.prompt_logprobs is not None:
        said.prompt_logprobs = []
        for start in range(0, len(prompt), 16):
            engine.prefill_chunk(prompt, start, 16, 0)
            behind = prompt[start + 1 : start + 17]
            said.prompt_logprobs += engine.prompt_logprobs(behind, params.prompt_logprobs)
    return said


class Machine:
    """Requests are submitted to it and stepped; `said` has what came, by request and answer."""

    def __init__(
        self,
        shape: str = NARROW,
        *,
        slots: int = 4,
        pools: PoolSizes = ROOMY,
        limits: Limits | None = None,
        tokenizer: Tokenizer | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.shape, self.texts = shape, (tokenizer, grammars)
        self.now = 0.0
        self.run_by(
            Scheduler(
                engine_of(shape, slots=slots, pools=pools),
                limits=limits,
                tokenizer=tokenizer,
                grammars=grammars,
                clock=lambda: self.now,
            )
        )
        self.requests: dict[str, Request] = {}
        self.said: dict[tuple[str, int], Said] = {}

    def run_by(self, scheduler: Scheduler) -> None:
        """One that has run nothing."""
        self.scheduler, self.engine = scheduler, scheduler.engine
        self.memory = scheduler.seats.memory
        self._poison()

    def submit(self, prompt: Sequence[int], params: SamplingParams, **more: object) -> str:
        """Its id."""
        name = str(len(self.requests))
        request = Request(id=name, prompt=tuple(prompt), params=params, **more)  # pyright: ignore
        self.scheduler.submit(request)
        self.requests[name] = request
        self.said.update({(name, index): Said() for index in range(params.n)})
        return name

    def step(self) -> list[Output]:
        outputs = self.scheduler.step()
        self.now += 1.0
        for output in outputs:
            self._take(output)
        self.check()
        return outputs

    def run(self, most: int = 3000) -> None:
        """Until nothing is left to do; then all is given back and said."""
        for _ in range(most):
            if self.scheduler.idle:
                break
            self.step()
        assert self.scheduler.idle, "it does not come to an end"
        for said in self.said.values():
            assert said.end is not None
        assert self.memory.cache.full.used == self.memory.cache.sliding.used == 0
        for pool, layers in self._pools():
            for layer in layers:
                assert (layer[list(pool.free)] == POISON).all(), "somebody wrote to a free block"
        assert self.scheduler.seats.free == self.engine.state.slots

    def ask(self, prompt: Sequence[int], params: SamplingParams, **more: object) -> Said:
        """One request with one answer, from beginning to end."""
        name = self.submit(prompt, params, **more)
        self.run()
        return self.said[name, 0]

    @property
    def live(self) -> list[Answer]:
        """The answers with a slot."""
        every = [answer for made in self.scheduler._answers.values() for answer in made]
        return [answer for answer in every if answer.slot >= 0]

    def check(self) -> None:
        self.memory.check()
        slots = [answer.slot for answer in self.live]
        assert len(set(slots)) == len(slots) == self.engine.state.slots - self.scheduler.seats.free

    def _pools(self) -> list[tuple[Pool[Any], list[Tensor]]]:
        """Each pool, and the layers whose blocks it has."""
        sliding = self.memory._sliding
        full = [layer for layer in self.engine.state.layers if not any(layer is s for s in sliding)]
        return [(self.memory.cache.full, full), (self.memory.cache.sliding, sliding)]

    def _poison(self) -> None:
        """A row that is read before it is written, or after its block was given back, shows."""

        def given(pool: Pool[Any], layers: list[Tensor], block: int) -> None:
            for layer in layers:
                layer[block] = POISON
            type(pool).give(pool, block)

        for pool, layers in self._pools():
            for layer in layers:
                layer[1:] = POISON
            vars(pool)["give"] = partial(given, pool, layers)

    def _take(self, output: Output) -> None:
        request, said = self.requests[output.request_id], self.said[output.request_id, output.index]
        assert said.end is None, "something came after the end"
        said.end = output.end
        if output.prompt_logprobs is not None:
            assert said.prompt_logprobs is None
            said.prompt_logprobs = list(output.prompt_logprobs)
        if output.step is not None:
            said.add(output.step, output.logprobs)
        params = request.params.answers()[output.index]
        with nothing_fails():
            wanted = alone(self.shape, request.prompt, params, *self.texts)
        assert said.begins(wanted)
        if said.end is not None and said.end.reason in ("stop", "length"):
            assert (said.tokens, said.text) == (wanted.tokens, wanted.text)
            assert len(said.logprobs) == len(wanted.logprobs)
            assert said.prompt_logprobs == wanted.prompt_logprobs
            assert said.end.reason == wanted.steps[-1].finish_reason
            assert said.end.numbers.tokens == len(said.tokens)

    def check_rows(self, answer: Answer) -> None:
        """Keys and values of the answer's rows that may still be read, against a cold run's; those
        of MTP layers as far as they are final, unless they have to catch up."""
        engine, cold, config = self.engine, lone_engine(self.shape), self.engine.config
        text = answer.tokens[: answer.computed + 1]
        cold.prefill(text, 0, SamplingParams())
        depths = len(config.mtp_layers)
        settled = min(answer.computed, len(text) - depths)
        if answer.phase is Phase.LOADING:  # what the next chunk runs again
            settled = min(settled, answer.computed - depths)
        for index, layer in enumerate((*config.layers, *config.mtp_layers)):
            drafts = index >= len(config.layers)
            if drafts and answer.decoding.unseen:
                continue
            end = settled if drafts else answer.computed
            start = max(0, end + 1 - layer.window) if layer.window else 0
            if start < end:
                rows = range(start, end)
                found = rows_of(engine, answer.slot, index, bool(layer.window), rows)
                wanted = rows_of(cold, 0, index, bool(layer.window), rows)
                assert torch.equal(found, wanted), f"layer {index}, rows {rows}"


def rows_of(engine: Engine, slot: int, layer: int, sliding: bool, rows: range) -> Tensor:
    """Keys and values of these positions."""
    state, at = engine.state, torch.tensor(rows)
    table = state.sliding_table if sliding else state.full_table
    blocks, pool = table[slot, at // BLOCK], state.layers[layer]
    assert (blocks > 0).all(), "a row in use has no block"
    return pool[blocks, :, at % BLOCK // 8, :, at % 8]


def tokens(count: int, seed: int = 0) -> list[int]:
    """Random ones of a small vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count,), generator=generator).tolist()
