"""Who runs next: a bounded queue, slots and blocks, prompts loaded in chunks between decode steps.

Knows answers, slots and one engine with its memory. Does not know threads, transports or text
formats. Keeps true: each answer's tokens are those of the request run alone; every answer has one
end and nothing after it; an answer that is over has given back its slot and blocks before the next
step; a failed call ends the answers that took part in it and no others.

One `step` loads at most one chunk of one prompt and decodes one batch, so that running answers wait
for no more than a chunk.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runtime.answer import Answer, End, EndReason, Output, Phase, Request
from runtime.engine import Engine, EngineError
from runtime.exchange import Committed, Turn
from runtime.failpoints import InjectedError, reach
from runtime.generate import check_request
from runtime.grammar import GrammarError, Grammars
from runtime.logprobs import TokenLogprobs
from runtime.memory import Memory
from runtime.request import Finish, SamplingParams, Step
from runtime.tokenizer import Tokenizer
from runtime.width import AutoWidth, FixedWidth, StepCosts, WidthPolicy

# What ends the answers of one call; anything else is a fault of ours and ends everything.
CALL_ERRORS = (EngineError, GrammarError, InjectedError)


class QueueFullError(RuntimeError):
    """The queue has no place now; later it may."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`queued`: answers that may wait; `chunk_rows`: rows of a prompt loaded between two decode
    steps while other answers run."""

    queued: int = 256
    chunk_rows: int = 64


class Scheduler:
    """The answers of one engine, which must have been made with pools.

    `costs`: step costs by batch, for the width policy; without them every answer verifies all the
    drafts there are unless its request says how many. Not thread-safe: see service.py.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        limits: Limits | None = None,
        tokenizer: Tokenizer | None = None,
        grammars: Grammars | None = None,
        costs: Mapping[int, StepCosts] | None = None,
        prior: Sequence[float] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert engine.pools is not None, "the engine maps its slots by itself"
        self.engine, self.limits = engine, limits or Limits()
        self._tokenizer, self._grammars = tokenizer, grammars
        self._costs, self._prior, self._clock = costs, prior, clock
        self.memory = Memory(
            engine.state,
            engine.config,
            engine.pools,
            depths=len(engine.weights.mtp) if engine.draft_tokens else 0,
            reach=engine.catch_up.reach if engine.draft_tokens else 0,
            largest_call=engine.largest_call,
        )
        self._free_slots = list(range(engine.state.slots))[::-1]
        self._answers: dict[str, list[Answer]] = {}
        self._queue: list[Answer] = []
        self._loading: list[Answer] = []
        self._running: list[Answer] = []
        self._outputs: list[Output] = []
        self._arrivals = self._turns = 0
        self.batches = sorted({batch for batch, _ in engine.shapes})

    # Asking and cancelling

    def submit(self, request: Request) -> None:
        """Queue all answers of a request.

        Raises ValueError for what can never run, QueueFullError when there is no place.
        """
        if request.id in self._answers:
            raise ValueError(f"request id {request.id!r} is in use")
        all_params = request.params.answers()
        for params in all_params:
            check_request(self.engine, request.prompt, params)
        self._check_fits(request)
        if len(self._queue) + len(all_params) > self.limits.queued:
            raise QueueFullError(
                f"{len(self._queue)} answers wait, {self.limits.queued} may: try again later"
            )
        made = [self._answer(request, i, params) for i, params in enumerate(all_params)]
        self._answers[request.id] = made
        self._queue.extend(made)
        self._queue.sort(key=lambda answer: answer.order)

    def cancel(self, request_id: str, reason: EndReason = "cancelled") -> bool:
        """End what is not over of a request, in whatever state; False if there is no such one."""
        answers = self._answers.get(request_id, [])
        for answer in answers:
            if answer.phase is not Phase.OVER:
                self._end(answer, reason)
        return bool(answers)

    def fail_all(self, message: str) -> list[Output]:
        """End everything, for example because the engine is lost."""
        for answer in [*self._queue, *self._loading, *self._running]:
            self._end(answer, "failed", message=message)
        self._answers.clear()
        return self._take_outputs()

    @property
    def idle(self) -> bool:
        return not (self._queue or self._loading or self._running or self._outputs)

    @property
    def load(self) -> dict[str, int]:
        """Answers by phase."""
        return {
            "queued": len(self._queue),
            "loading": len(self._loading),
            "running": len(self._running),
        }

    # One step

    def step(self) -> list[Output]:
        """Do some work; what came of it, in order."""
        self._turns += 1
        self._expire()
        self._admit()
        self._load()
        self._decode()
        return self._take_outputs()

    def _expire(self) -> None:
        now = self._clock()
        late = {
            answer.request.id
            for answer in (*self._queue, *self._loading, *self._running)
            if answer.request.deadline is not None and now >= answer.request.deadline
        }
        for request_id in sorted(late):
            self.cancel(request_id, "deadline")

    def _admit(self) -> None:
        while self._queue and self._free_slots:
            answer, slot = self._queue[0], self._free_slots[-1]
            if not self._open(answer, slot):
                return  # whoever is next waits for blocks; nobody overtakes
            self._queue.pop(0)
            self._free_slots.pop()
            self._loading.append(answer)

    def _open(self, answer: Answer, slot: int) -> bool:
        """Give a slot and its cached prefix to an answer, if its text fits beside the others'."""
        request, tokens = answer.request, answer.tokens
        reuse = request.params.prompt_logprobs is None
        cached = self.memory.open(slot, tokens, request.salt, reuse=reuse)
        if not self.memory.fits(slot, len(tokens) + self._window):
            self.memory.close(slot, tokens, 0, 0)
            return False
        answer.slot, answer.computed, answer.phase = slot, cached, Phase.LOADING
        if not answer.numbers.preemptions:
            answer.numbers.cached_tokens = cached
            answer.numbers.queued_s = self._clock() - answer.asked_at
        said = tokens[len(request.prompt) :]
        self.engine.assign(slot, request.prompt, answer.params, said)
        return True

    def _load(self) -> None:
        """One chunk of the prompt of whoever was served longest ago."""
        if not self._loading:
            return
        answer = min(self._loading, key=lambda a: (a.request.priority, a.served, a.arrival))
        answer.served = self._turns
        left = len(answer.tokens) - answer.computed
        most = self.limits.chunk_rows if self._running else self.engine.plan.prefill[-1]
        rows = self.engine.plan.chunk(left, most)
        if not self._reserve(answer, min(answer.computed + rows, len(answer.tokens))):
            return
        self._guard([answer], lambda: self._load_chunk(answer, rows))

    def _load_chunk(self, answer: Answer, rows: int) -> None:
        start, tokens = answer.computed, answer.tokens
        done = start + rows >= len(tokens)
        mask = answer.decoding.first_mask() if done else None
        reach("engine.step")
        committed = self.engine.prefill_chunk(tokens, start, rows, answer.slot, mask)
        self._prompt_logprobs(answer, start, rows)
        if not done:
            answer.computed = start + rows
            self._advance(answer)
            return
        answer.decoding.begin(answer.slot, committed)
        step, finish = answer.first(committed)
        self._loading.remove(answer)
        self._running.append(answer)
        answer.phase = Phase.RUNNING
        if answer.numbers.first_token_s is None:
            answer.numbers.first_token_s = self._clock() - answer.asked_at
        self._emit(answer, step, finish, entry=0)

    def _decode(self) -> None:
        """One step of those that were served longest ago, as many as a batch takes."""
        self._running.sort(key=lambda a: (a.request.priority, a.served, a.arrival))
        batch: list[tuple[Answer, Turn]] = []
        for answer in self._running[: self.batches[-1]]:
            if answer.phase is not Phase.RUNNING:
                continue  # gave its blocks to one before it
            if not self._reserve(answer, len(answer.tokens) + self._window):
                continue
            self._guard([answer], lambda a=answer: batch.append((a, self._turn(a))))
        batch = [(a, turn) for a, turn in batch if a.phase is Phase.RUNNING]
        if batch:
            self._guard([answer for answer, _ in batch], lambda: self._decode_batch(batch))

    def _turn(self, answer: Answer) -> Turn:
        answer.served = self._turns
        return answer.decoding.turn(answer.tokens[-1], len(answer.tokens) - 1)

    def _decode_batch(self, batch: Sequence[tuple[Answer, Turn]]) -> None:
        draft = any(answer.decoding.wants_drafts for answer, _ in batch)
        size = next(size for size in self.batches if size >= len(batch))
        reach("engine.step")
        results = self.engine.decode([turn for _, turn in batch], draft=draft)
        for entry, ((answer, turn), committed) in enumerate(zip(batch, results, strict=True)):
            answer.decoding.policy.batch(size)
            self._guard(
                [answer],
                lambda a=answer, t=turn, c=committed, e=entry: self._take(a, t, c, draft, e),
            )

    def _take(
        self, answer: Answer, turn: Turn, committed: Committed, draft: bool, entry: int
    ) -> None:
        step, finish = answer.take(committed, turn.drafts, drafted=draft)
        answer.numbers.count(step)
        if answer.decoding.skipped_to is not None:
            self.memory.skipped(answer.slot, answer.decoding.skipped_to)
            answer.decoding.skipped_to = None
        self._emit(answer, step, finish, entry=entry)

    # Results

    def _emit(self, answer: Answer, step: Step, finish: Finish | None, *, entry: int) -> None:
        top = answer.params.logprobs
        logprobs: tuple[TokenLogprobs, ...] | None = None
        if top is not None:
            logprobs = tuple(self.engine.top_logprobs(entry, step.token_ids, top))
        prompt = tuple(answer.prompt_logprobs) or None
        answer.prompt_logprobs = []
        end = None
        if finish is None:
            self._advance(answer)
        else:
            end = self._over(answer, finish.reason, matched=finish.matched)
        self._outputs.append(
            Output(
                request_id=answer.request.id,
                index=answer.index,
                step=step,
                logprobs=logprobs,
                prompt_logprobs=prompt,
                end=end,
            )
        )

    def _prompt_logprobs(self, answer: Answer, start: int, rows: int) -> None:
        top, prompt = answer.params.prompt_logprobs, answer.request.prompt
        if top is None or answer.numbers.tokens:
            return
        behind = prompt[start + 1 : start + rows + 1]
        answer.prompt_logprobs += self.engine.prompt_logprobs(behind, top)

    def _end(self, answer: Answer, reason: EndReason, *, message: str = "") -> None:
        """An answer is over without a last step."""
        end = self._over(answer, reason, message=message)
        self._outputs.append(Output(request_id=answer.request.id, index=answer.index, end=end))

    def _over(
        self,
        answer: Answer,
        reason: EndReason,
        *,
        matched: int | str | None = None,
        message: str = "",
    ) -> End:
        assert answer.phase is not Phase.OVER
        self._leave(answer)
        answer.phase = Phase.OVER
        answer.numbers.total_s = self._clock() - answer.asked_at
        siblings = self._answers.get(answer.request.id, [])
        if all(sibling.phase is Phase.OVER for sibling in siblings):
            self._answers.pop(answer.request.id, None)
        return End(reason=reason, numbers=answer.numbers, matched=matched, message=message)

    def _take_outputs(self) -> list[Output]:
        outputs, self._outputs = self._outputs, []
        return outputs

    def _guard(self, answers: Sequence[Answer], call: Callable[[], object]) -> None:
        """Run a call; what it raises for a reason of its own ends these answers alone."""
        try:
            call()
        except CALL_ERRORS as error:
            for answer in answers:
                if answer.phase is not Phase.OVER:
                    self._end(answer, "failed", message=str(error))

    # Slots and blocks

    def _advance(self, answer: Answer) -> None:
        self.memory.advance(answer.slot, answer.tokens, answer.computed, answer.filled)

    def _leave(self, answer: Answer) -> None:
        """Take an answer from its list, and its slot and blocks from it."""
        lists = {
            Phase.QUEUED: self._queue,
            Phase.LOADING: self._loading,
            Phase.RUNNING: self._running,
        }
        lists[answer.phase].remove(answer)
        if answer.slot >= 0:
            computed = min(answer.computed, len(answer.tokens))
            filled = min(answer.filled, computed)
            self.memory.close(answer.slot, answer.tokens, computed, filled)
            self._free_slots.append(answer.slot)
            answer.slot = -1

    def _reserve(self, answer: Answer, positions: int) -> bool:
        """Map blocks for an answer's next call, if need be those of who should wait for it."""
        try:
            reach("allocate")
        except InjectedError as error:
            self._end(answer, "failed", message=str(error))
            return False
        while not self.memory.reserve(answer.slot, positions):
            last = max((*self._loading, *self._running), key=lambda a: a.order)
            self._preempt(last)
            if last is answer:
                return False
        return True

    def _preempt(self, answer: Answer) -> None:
        """Back to the queue with what was said so far: it is run again from there."""
        self._leave(answer)
        answer.phase, answer.computed = Phase.QUEUED, 0
        answer.numbers.preemptions += 1
        self._queue.append(answer)
        self._queue.sort(key=lambda a: a.order)

    @property
    def _window(self) -> int:
        return self.engine.draft_tokens + 1

    def _check_fits(self, request: Request) -> None:
        positions = len(request.prompt) + request.params.max_tokens + self._window
        needed, there = self.memory.needed(positions), self.memory.sizes
        for name in ("full", "sliding"):
            if getattr(needed, name) > getattr(there, name):
                raise ValueError(
                    f"{positions} positions need {getattr(needed, name)} {name} blocks, "
                    f"the pool has {getattr(there, name)}"
                )

    def _answer(self, request: Request, index: int, params: SamplingParams) -> Answer:
        self._arrivals += 1
        return Answer.of(
            self.engine,
            request,
            params,
            policy=self._policy(request),
            index=index,
            arrival=self._arrivals,
            asked_at=self._clock(),
            tokenizer=self._tokenizer,
            grammars=self._grammars,
        )

    def _policy(self, request: Request) -> WidthPolicy:
        most = self.engine.draft_tokens
        if request.draft_tokens is not None:
            return FixedWidth(count=min(request.draft_tokens, most))
        if self._costs is None or most == 0:
            return FixedWidth(count=most)
        return AutoWidth(tables=self._costs, rates=list(self._prior[:most]))
