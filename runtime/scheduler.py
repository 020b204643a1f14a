"""Who runs next: a bounded queue, prompts loaded in chunks between decode steps, fair turns.

Knows answers, their seats and one engine. Does not know threads, transports or text formats. Keeps
true: each answer's tokens are those of the request run alone; every answer has one end and nothing
after it; an answer that is over has given back its slot and blocks before the next step; a failed
call ends the answers that took part in it and no others.

One `step` loads a bounded number of rows of prompts and decodes one batch, or the next one does if
these rows have told something, so that running answers wait for no more than these rows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from graphs.plan import MAX_WIDTH
from runtime.answer import Answer, End, EndReason, Output, Phase, Request
from runtime.engine import Engine, EngineError
from runtime.exchange import Turn
from runtime.failpoints import InjectedError, reach
from runtime.generate import check_request
from runtime.grammar import GrammarError, Grammars
from runtime.request import Finish, Step
from runtime.seats import Seats
from runtime.tokenizer import Tokenizer
from runtime.width import StepCosts, agree, policy_for

# What ends the answers of one call; anything else is a fault of ours and ends everything.
CALL_ERRORS = (EngineError, GrammarError, InjectedError)


class QueueFullError(RuntimeError):
    """The queue has no place now; later it may."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`queued`: answers that may wait; `chunk_rows`: rows of prompts loaded between two decode
    steps while other answers run, or one chunk."""

    queued: int = 256
    chunk_rows: int = 64


class Scheduler:
    """The answers of one engine, which must have been made with pools.

    `costs`: step costs by batch, for the width policy, with its `prior`; without them every answer
    verifies all the drafts there are unless its request says how many. Not thread-safe.
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
        self.engine, self.limits, self.seats = engine, limits or Limits(), Seats(engine)
        self._clock = clock
        self._policy = partial(policy_for, most=engine.draft_tokens, costs=costs, prior=prior)
        self._make = partial(Answer.of, engine, tokenizer=tokenizer, grammars=grammars)
        self._answers: dict[str, list[Answer]] = {}
        self._lists: dict[Phase, list[Answer]] = {phase: [] for phase in Phase}
        self._queue = self._lists[Phase.QUEUED]
        self._loading, self._running = self._lists[Phase.LOADING], self._lists[Phase.RUNNING]
        self._outputs: list[Output] = []
        self._arrivals = self._turns = 0
        self._told = False  # first tokens, and the batch is still to be decoded
        self._batches = sorted({batch for batch, _ in engine.shapes})

    def prepare(self, request: Request) -> list[Answer]:
        """Its answers, for `submit`. May be called from any thread: a constraint that takes long to
        compile holds up nobody. Raises ValueError for what can never run."""
        all_params = request.params.answers()
        check_request(self.engine, request.prompt, request.params)
        self.seats.check(len(request.prompt) + request.params.max_tokens)
        if (count := len(all_params)) > (most := self.limits.queued):
            raise ValueError(f"n = {count}: at most {most} answers may wait")
        drafts, now = request.draft_tokens, self._clock()
        return [
            self._make(request, params, policy=self._policy(drafts), index=index, asked_at=now)
            for index, params in enumerate(all_params)
        ]

    def submit(self, request: Request, prepared: list[Answer] | None = None) -> None:
        """Queue all answers of a request.

        Raises ValueError for what can never run, QueueFullError when there is no place.
        """
        if request.id in self._answers:
            raise ValueError(f"request id {request.id!r} is in use")
        made = self.prepare(request) if prepared is None else prepared
        self.check_room(len(made))
        for answer in made:
            self._arrivals += 1
            answer.arrival = self._arrivals
        self._answers[request.id] = made
        self._queue.extend(made)
        self._queue.sort(key=lambda answer: answer.order)

    def check_room(self, answers: int = 1) -> None:
        """QueueFullError if so many have no place in the queue. From any thread."""
        waiting, most = len(self._queue), self.limits.queued
        if waiting + answers > most:
            raise QueueFullError(f"{waiting} answers wait, {most} may: try again later")

    def cancel(self, request_id: str, reason: EndReason = "cancelled") -> bool:
        """End what is not over of a request, in whatever state; False if there is no such one."""
        answers = self._answers.get(request_id, [])
        self._end_all(answers, reason)
        return bool(answers)

    def fail_all(self, message: str) -> list[Output]:
        """End everything, for example because the engine is lost."""
        for answers in list(self._answers.values()):
            self._end_all(answers, "failed", message=message)
        return self._take_outputs()

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not (self._answers or self._outputs)

    @property
    def load(self) -> dict[str, int]:
        """Answers by phase."""
        return {phase.value: len(answers) for phase, answers in self._lists.items()}

    def step(self) -> list[Output]:
        """Do some work; what came of it, in order. First tokens do not wait for the batch."""
        self._expire()
        if not (self._told and self._running):
            self._turns += 1
            self._admit()
            before = len(self._outputs)
            self._load()
            self._told = len(self._outputs) > before
            if self._told and self._running:
                return self._take_outputs()
        self._told = False
        self._decode()
        return self._take_outputs()

    def _expire(self) -> None:
        now = self._clock()
        for request_id, answers in list(self._answers.items()):
            deadline = answers[0].request.deadline
            if deadline is not None and now >= deadline:
                self.cancel(request_id, "deadline")

    def _admit(self) -> None:
        while self._queue and self.seats.free:
            answer = self._queue[0]
            if not self.seats.open(answer):
                return  # it waits for blocks, and nobody overtakes it
            self._move(answer, Phase.LOADING)
            answer.served = self._turns
            if not answer.numbers.preemptions:
                answer.numbers.cached_tokens = answer.computed
                answer.numbers.queued_s = self._clock() - answer.asked_at

    def _load(self) -> None:
        """Chunks of the prompts of those that were served longest ago."""
        sizes, loaded = self.engine.plan.prefill, 0
        while self._loading:
            most = (self.limits.chunk_rows if self._running else sizes[-1]) - loaded
            if loaded and most < sizes[0]:
                return
            answer = min(self._loading, key=lambda a: a.turn(self._turns))
            answer.served = self._turns
            rows = self.engine.plan.chunk(len(answer.tokens) - answer.computed, most)
            loaded += rows
            try:
                if self._reserve(answer, min(answer.computed + rows, len(answer.tokens))):
                    self._load_chunk(answer, rows)
            except CALL_ERRORS as error:
                self._fail([answer], error)

    def _load_chunk(self, answer: Answer, rows: int) -> None:
        start, tokens, slot = answer.computed, answer.tokens, answer.slot
        done = start + rows >= len(tokens)
        mask, unseen = None, 0
        if done:
            agree([a.decoding.policy for a in (*self._running, *self._loading)], self._batches)
            mask = answer.decoding.first_mask()
            unseen = answer.decoding.left_out(start, len(tokens), rows)
        reach("engine.step")
        committed = self.engine.prefill_chunk(tokens, start, rows, slot, mask, draft=not unseen)
        answer.told(self.engine, start, rows)
        if not done:
            answer.computed = start + rows
            self.seats.advance(answer)
            return
        answer.decoding.begin(slot, committed, unseen)
        step, finish = answer.first(committed)
        self._move(answer, Phase.RUNNING)
        if answer.numbers.first_token_s is None:
            answer.numbers.first_token_s = self._clock() - answer.asked_at
        self._emit(answer, step, finish, entry=0)

    def _decode(self) -> None:
        """One step of those that were served longest ago, as many as a batch takes."""
        by_turn = sorted(self._running, key=lambda a: a.turn(self._turns))
        chosen, batch = by_turn[: self._batches[-1]], list[tuple[Answer, Turn]]()
        agree([answer.decoding.policy for answer in chosen], self._batches)
        for answer in chosen:
            # One that is no longer running gave its blocks to one before it.
            if answer.phase is not Phase.RUNNING:
                continue
            try:
                if self._reserve(answer, len(answer.tokens) + MAX_WIDTH - 1):
                    answer.served = self._turns
                    batch.append((answer, answer.ask()))
            except CALL_ERRORS as error:
                self._fail([answer], error)
        batch = [(answer, turn) for answer, turn in batch if answer.phase is Phase.RUNNING]
        try:
            if batch:
                self._decode_batch(batch)
        except CALL_ERRORS as error:
            self._fail([answer for answer, _ in batch], error)

    def _decode_batch(self, batch: Sequence[tuple[Answer, Turn]]) -> None:
        draft = any(answer.decoding.wants_drafts for answer, _ in batch)
        reach("engine.step")
        results = self.engine.decode([turn for _, turn in batch], draft=draft)
        for entry, ((answer, turn), committed) in enumerate(zip(batch, results, strict=True)):
            try:
                step, finish = answer.take(committed, turn.drafts, drafted=draft)
                answer.numbers.count(step)
                self._emit(answer, step, finish, entry=entry)
            except CALL_ERRORS as error:
                self._fail([answer], error)

    def _emit(self, answer: Answer, step: Step, finish: Finish | None, *, entry: int) -> None:
        reach("sampler")
        end = finish and self._over(answer, finish.reason, matched=finish.matched)
        if end is None:
            self.seats.advance(answer)
        self._outputs.append(answer.output(self.engine, step, entry, end))

    def _end_all(self, answers: Sequence[Answer], reason: EndReason, *, message: str = "") -> None:
        """Those that are not over are, without a last step."""
        for one in answers:
            if one.phase is not Phase.OVER:
                end = self._over(one, reason, message=message)
                self._outputs.append(Output(request_id=one.request.id, index=one.index, end=end))

    def _over(
        self, answer: Answer, reason: EndReason, matched: int | str | None = None, message: str = ""
    ) -> End:
        assert answer.phase is not Phase.OVER
        if answer.phase is Phase.QUEUED and not answer.numbers.preemptions:
            answer.numbers.queued_s = self._clock() - answer.asked_at
        self.seats.close(answer)
        self._move(answer, Phase.OVER)
        self._lists[Phase.OVER].clear()
        answer.numbers.total_s = self._clock() - answer.asked_at
        if all(sibling.phase is Phase.OVER for sibling in self._answers[answer.request.id]):
            del self._answers[answer.request.id]
        return End(reason=reason, numbers=answer.numbers, matched=matched, message=message)

    def _move(self, answer: Answer, phase: Phase) -> None:
        self._lists[answer.phase].remove(answer)
        answer.phase = phase
        self._lists[phase].append(answer)

    def _take_outputs(self) -> list[Output]:
        outputs, self._outputs = self._outputs, []
        return outputs

    def _fail(self, answers: Sequence[Answer], error: Exception) -> None:
        """What a call raises for a reason of its own ends its answers and no others."""
        reason = "invalid" if isinstance(error, GrammarError) else "failed"
        self._end_all(answers, reason, message=str(error))

    def _reserve(self, answer: Answer, positions: int) -> bool:
        """Map blocks for an answer's next call, if need be those of who should wait for it."""
        reach("allocate")
        while answer.slot >= 0:
            if self.seats.reserve(answer, positions):
                return True
            self._preempt(max((*self._loading, *self._running), key=lambda a: a.order))
        return False

    def _preempt(self, answer: Answer) -> None:
        """Back to the queue with what it has said so far, to be run again from there."""
        self.seats.close(answer)
        answer.set_back()
        self._move(answer, Phase.QUEUED)
        self._queue.sort(key=lambda a: a.order)
