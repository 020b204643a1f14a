"""What the engine has done and is doing, as Prometheus metrics of one process.

Knows outputs and the scheduler's own numbers; does not know who asked or how metrics are fetched.
Keeps true: tokens and drafts are counted once they are put out, so what was computed behind an
answer's end is in no number; the speculation counters have the names and the meaning that vLLM's
have; a registry of its own, so two services in a process do not mix.

An answer's prompt and times to its first token are counted at its first output, the rest of it at
its end.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from graphs.plan import MAX_WIDTH
from runtime.answer import End, Output
from runtime.engine import Engine
from runtime.numbers import Numbers
from runtime.request import Step
from runtime.scheduler import Scheduler

BARREN = 256  # steps that verified drafts, and none was right: something is broken

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STEPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5)
_REASONS = ("stop", "length", "cancelled", "deadline", "invalid", "failed")
_PHASES = ("queued", "loading", "running")


class Metrics:
    """An Observer of one Service (runtime.service). `text` may be called from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = registry = CollectorRegistry()
        self._clock = clock
        self._last: dict[tuple[str, int], float] = {}  # when an answer last put out tokens
        self._barren = 0
        counter = partial(Counter, registry=registry)
        seconds = partial(Histogram, registry=registry, buckets=_SECONDS)

        self._drafts = counter("vllm:spec_decode_num_drafts", "Steps of answers that had drafts.")
        self._draft_tokens = counter("vllm:spec_decode_num_draft_tokens", "Drafts verified.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Drafts accepted.")
        self._accepted_at = _labelled(
            counter("vllm:spec_decode_num_accepted_tokens_per_pos", "By place.", ["position"]),
            *(str(position) for position in range(MAX_WIDTH - 1)),
        )
        self._length = Histogram(
            *("fourstep_acceptance_length", "Tokens a step with drafts put out for an answer."),
            registry=registry,
            buckets=range(1, 1 + MAX_WIDTH),
        )
        alarm = "1: none of the drafts of the last many steps was right, so something is broken."
        Gauge("fourstep_drafts_never_right", alarm, registry=registry).set_function(
            lambda: float(self._barren >= BARREN)
        )

        self._ended = _labelled(
            counter("fourstep_answers", "Answers by how they ended.", ["reason"]), *_REASONS
        )
        self._prompt = counter("fourstep_prompt_tokens", "Prompt tokens of answers that began.")
        self._cached = counter("fourstep_cached_tokens", "Of these, taken from the prefix cache.")
        self._tokens = counter("fourstep_tokens", "Tokens put out.")
        self._preemptions = counter("fourstep_preemptions", "Answers that had to start again.")

        self._queue_s = seconds("fourstep_queue_seconds", "From the request to a slot.")
        self._first_s = seconds("fourstep_first_token_seconds", "From the request to a token.")
        self._total_s = seconds("fourstep_answer_seconds", "From the request to the end.")
        self._between_s = Histogram(
            *("fourstep_between_outputs_seconds", "Between two outputs of an answer."),
            registry=registry,
            buckets=_STEPS,
        )

    def watch(self, scheduler: Scheduler) -> None:
        """From now on tell the scheduler's own numbers, as they are when `text` is called."""
        gauge = partial(Gauge, registry=self.registry)
        answers = gauge("fourstep_answers_now", "Answers by what they are doing.", ["phase"])
        for phase in _PHASES:
            answers.labels(phase).set_function(lambda phase=phase: scheduler.load[phase])
        blocks = gauge("fourstep_blocks", "Blocks by pool: in use, kept, free.", ["pool", "state"])
        cache = scheduler.seats.memory.cache
        for name, pool in (("full", cache.full), ("sliding", cache.sliding)):
            told: dict[str, Callable[[], float]] = {
                "used": lambda pool=pool: pool.used,
                "kept": lambda pool=pool: pool.kept,
                "free": lambda pool=pool: pool.available - pool.kept,
            }
            for state, tell in told.items():
                blocks.labels(name, state).set_function(tell)
        self.registry.register(_Steps(scheduler.engine))

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def seen(self, outputs: Sequence[Output]) -> None:
        """What one step put out."""
        now = self._clock()
        for output in outputs:
            answer = output.request_id, output.index
            before = self._last.pop(answer, None)
            if output.step is not None:
                if before is not None:
                    self._between_s.observe(now - before)
                self._step(output.step)
            if output.begun is not None:
                self._begun(output.begun)
            if output.end is not None:
                self._end(output.end)
            elif output.step is not None:
                self._last[answer] = now

    def _step(self, step: Step) -> None:
        self._tokens.inc(len(step.token_ids))
        if not step.drafted:
            return
        self._drafts.inc()
        self._draft_tokens.inc(len(step.drafted))
        self._length.observe(len(step.token_ids))
        self._barren += 1
        if step.accepted:
            self._barren = 0
            self._accepted.inc(step.accepted)
        for position in range(step.accepted):
            self._accepted_at[str(position)].inc()

    def _begun(self, numbers: Numbers) -> None:
        self._prompt.inc(numbers.prompt_tokens)
        self._cached.inc(numbers.cached_tokens)
        self._queue_s.observe(numbers.queued_s)
        assert numbers.first_token_s is not None
        self._first_s.observe(numbers.first_token_s)

    def _end(self, end: End) -> None:
        self._ended[end.reason].inc()
        self._preemptions.inc(end.numbers.preemptions)
        self._total_s.observe(end.numbers.total_s)
        if end.numbers.first_token_s is None:  # it never began: all it did was wait
            self._queue_s.observe(end.numbers.queued_s)


class _Steps(Collector):
    """An engine's decode steps by shape: it counts them itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            *("fourstep_steps", "Decode steps by shape, and whether they ended with drafts."),
            labels=["batch", "width", "drafted"],
        )
        for (batch, width, drafted), count in self._engine.steps.items():
            family.add_metric([str(batch), str(width), str(drafted).lower()], count)
        yield family


def _labelled(counter: Counter, *values: str) -> dict[str, Counter]:
    """Its children by the value of its one label, all of them there from the beginning."""
    return {value: counter.labels(value) for value in values}
