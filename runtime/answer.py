"""One answer of one request on its way: waiting, loading its prompt, running, over.

Knows its tokens and how far they were run. Does not know other answers, queues or blocks. Keeps
true: what was committed is told once, in order, and nothing after the end; an answer that was
stopped half way goes on from its tokens as if nothing had happened.
"""

import copy
import enum
from dataclasses import dataclass, field
from typing import Literal

from runtime.decoding import Decoding
from runtime.engine import Engine
from runtime.exchange import Committed, Turn
from runtime.failpoints import reach
from runtime.grammar import Grammars
from runtime.logprobs import TokenLogprobs
from runtime.numbers import Numbers
from runtime.request import Finish, SamplingParams, Step
from runtime.rules import Rules
from runtime.stop import Scanner
from runtime.tokenizer import Tokenizer
from runtime.width import WidthPolicy

# Turns that an answer with a slot waits for those of better priority, at most.
PATIENCE = 16

# invalid: what was asked for cannot be done, which showed on the way; failed: a fault of ours.
EndReason = Literal["stop", "length", "cancelled", "deadline", "invalid", "failed"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What somebody asks for: token ids and parameters.

    The lower `priority`, the sooner; `deadline` is a time of the scheduler's clock; requests of
    different `salt` share no cached prefix; `draft_tokens` fixes the drafts a step, None leaves
    them to the policy. Raises ValueError.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    deadline: float | None = None
    salt: str = ""
    draft_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt is empty")


@dataclass(frozen=True, kw_only=True)
class End:
    """Why an answer is over. `message` says more where something went wrong."""

    reason: EndReason
    numbers: Numbers
    matched: int | str | None = None
    message: str = ""


@dataclass(kw_only=True, slots=True)
class Output:
    """What one step did for one answer: new tokens and their text, or the end, or both.

    `logprobs`: of each token, if asked for. On the first output: `prompt_logprobs`, of each token
    of the prompt but the first, and `begun`, what the answer has cost up to there.
    """

    request_id: str
    index: int  # which of the request's answers
    step: Step | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    begun: Numbers | None = None
    end: End | None = None


class Phase(enum.Enum):
    QUEUED = "queued"
    LOADING = "loading"
    RUNNING = "running"
    OVER = "over"


@dataclass(eq=False, kw_only=True)
class Answer:
    """`tokens`: prompt and everything committed. `computed`: positions that were run, at most all
    but the last token while running."""

    request: Request
    index: int
    params: SamplingParams
    scanner: Scanner
    decoding: Decoding
    numbers: Numbers
    asked_at: float
    tokens: list[int]
    arrival: int = 0  # the scheduler counts them as they are queued
    phase: Phase = Phase.QUEUED
    slot: int = -1
    computed: int = 0
    served: int = 0  # the scheduler's turn at which it was last served
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        engine: Engine,
        request: Request,
        params: SamplingParams,
        *,
        policy: WidthPolicy,
        index: int = 0,
        asked_at: float = 0.0,
        tokenizer: Tokenizer | None = None,
        grammars: Grammars | None = None,
    ) -> "Answer":
        """A new one. Raises ValueError for what needs a tokenizer or Grammars that are not there,
        and for a constraint that is refused."""
        eos_ids = engine.config.stop_ids
        rules = Rules(
            params,
            vocab=engine.config.vocab_size,
            eos_ids=eos_ids,
            tokenizer=tokenizer,
            grammars=grammars,
        )
        return cls(
            request=request,
            index=index,
            params=params,
            scanner=Scanner(params, eos_ids=eos_ids, tokenizer=tokenizer),
            decoding=Decoding(engine, policy, rules),
            numbers=Numbers(prompt_tokens=len(request.prompt)),
            asked_at=asked_at,
            tokens=list(request.prompt),
        )

    @property
    def order(self) -> tuple[int, int]:
        """Who comes first."""
        return self.request.priority, self.arrival

    def turn(self, now: int) -> tuple[bool, int, int, int]:
        """Who is next at turn `now` among those that take turns: of whom has waited too long, or
        else of the first priority, the one that was served longest ago."""
        return now - self.served < PATIENCE, self.request.priority, self.served, self.arrival

    @property
    def filled(self) -> int:
        """Positions that the MTP layers are up to date with."""
        return self.computed - self.decoding.unseen

    def ask(self) -> Turn:
        """The next decode step."""
        return self.decoding.turn(self.tokens[-1], len(self.tokens) - 1)

    def first(self, committed: Committed) -> tuple[Step, Finish | None]:
        """The prompt, or all there was, has been run; its last row drew a token."""
        self.computed = len(self.tokens)
        return self._emit(committed, (), self.decoding.first(committed))

    def take(
        self, committed: Committed, drafts: tuple[int, ...], *, drafted: bool
    ) -> tuple[Step, Finish | None]:
        """What a step from the last token committed; `drafts` were verified."""
        position = len(self.tokens) - 1
        ended = self.decoding.take(committed, position, drafted=drafted)
        self.computed = position + len(committed.tokens)
        return self._emit(committed, drafts, ended)

    def set_back(self) -> None:
        """Its slot was taken: what it has said stands, and is run again in another one."""
        self.computed = 0
        self.decoding.set_back()
        self.prompt_logprobs.clear()
        self.numbers.preemptions += 1

    def told(self, engine: Engine, start: int, rows: int) -> None:
        """The engine has just run `rows` of the prompt: their logprobs, if asked for."""
        top, prompt = self.params.prompt_logprobs, self.request.prompt
        if top is not None and not self.numbers.tokens:
            behind = prompt[start + 1 : start + rows + 1]
            self.prompt_logprobs += engine.prompt_logprobs(behind, top)

    def output(self, engine: Engine, step: Step, entry: int, end: End | None) -> Output:
        """Of a step that the engine has just run as its `entry`-th turn."""
        top, first = self.params.logprobs, len(self.tokens) - len(step.token_ids)
        begins = first == len(self.request.prompt)
        told = begins and self.params.prompt_logprobs is not None
        return Output(
            request_id=self.request.id,
            index=self.index,
            step=step,
            logprobs=None
            if top is None
            else tuple(engine.top_logprobs(entry, step.token_ids, top)),
            prompt_logprobs=tuple(self.prompt_logprobs) if told else None,
            begun=copy.deepcopy(self.numbers) if begins else None,
            end=end,
        )

    def _emit(
        self, committed: Committed, drafts: tuple[int, ...], ended: int | None
    ) -> tuple[Step, Finish | None]:
        reach("detokenizer")
        scanned = self.scanner.push(committed.tokens, ended=ended)
        emitted, finish = scanned.token_ids, scanned.finish
        step = Step(
            token_ids=emitted,
            # Drafts behind the end were never asked for.
            drafted=drafts[: len(emitted)] if finish else drafts,
            accepted=min(committed.accepted, len(emitted)),
            finish_reason=finish and finish.reason,
            matched=finish and finish.matched,
            pieces=scanned.pieces,
        )
        self.tokens.extend(emitted)
        self.numbers.tokens += len(emitted)
        return step, finish
