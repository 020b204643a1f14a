"""Metrics are what the outputs say, and what the scheduler says when they are asked for."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.answer import End, Output
from runtime.metrics import BARREN, Metrics
from runtime.numbers import Numbers
from runtime.request import Step
from runtime.scheduler import Scheduler
from runtime.service import Service
from tests.runtime.served import request, scheduler

VLLM = "vllm:spec_decode_num"


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """One sample, which must be there."""
    families = text_string_to_metric_families(metrics.text().decode())
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) == 1, (name, labels)
    return found[0]


def run(made: Scheduler, metrics: Metrics) -> list[Output]:
    outputs: list[Output] = []
    while not made.idle:
        news = made.step()
        metrics.seen(news)
        outputs += news
    return outputs


@pytest.fixture(scope="module")
def busy() -> tuple[Scheduler, Metrics, list[Output]]:
    """Several answers, some cancelled, one after the other cached, some started again."""
    made, metrics, draw = scheduler(blocks=5), Metrics(), random.Random(1)
    metrics.watch(made)
    outputs: list[Output] = []
    for turn in range(2):
        for seed in range(4):
            made.submit(request(f"{turn}.{seed}", seed, n=draw.choice((1, 2)), max_tokens=60))
        for _ in range(6):
            news = made.step()
            metrics.seen(news)
            outputs += news
        made.cancel(f"{turn}.{draw.randrange(4)}")
        outputs += run(made, metrics)
    return made, metrics, outputs


def steps_of(outputs: Iterable[Output]) -> list[Step]:
    return [output.step for output in outputs if output.step is not None]


def ends_of(outputs: Iterable[Output]) -> list[End]:
    return [output.end for output in outputs if output.end is not None]


def test_speculation_counters_are_vllms(busy: tuple[Scheduler, Metrics, list[Output]]) -> None:
    _, metrics, outputs = busy
    drafted = [step for step in steps_of(outputs) if step.drafted]
    assert value(metrics, f"{VLLM}_drafts_total") == len(drafted) > 0
    assert value(metrics, f"{VLLM}_draft_tokens_total") == sum(len(s.drafted) for s in drafted)
    accepted = sum(step.accepted for step in drafted)
    assert value(metrics, f"{VLLM}_accepted_tokens_total") == accepted > 0
    for position in range(3):
        right = sum(step.accepted > position for step in drafted)
        name = f"{VLLM}_accepted_tokens_per_pos_total"
        assert value(metrics, name, position=str(position)) == right
    assert value(metrics, "fourstep_acceptance_length_count") == len(drafted)
    told = sum(len(step.token_ids) for step in drafted)
    assert value(metrics, "fourstep_acceptance_length_sum") == told


def test_tokens_and_ends_are_those_of_the_outputs(
    busy: tuple[Scheduler, Metrics, list[Output]],
) -> None:
    _, metrics, outputs = busy
    ends = ends_of(outputs)
    numbers = [end.numbers for end in ends]
    tokens = sum(len(step.token_ids) for step in steps_of(outputs))
    assert value(metrics, "fourstep_tokens_total") == tokens == sum(n.tokens for n in numbers)
    reasons = Counter(end.reason for end in ends)
    assert reasons["length"] > 0 < reasons["cancelled"]
    for reason in ("stop", "length", "cancelled", "deadline", "invalid", "failed"):
        assert value(metrics, "fourstep_answers_total", reason=reason) == reasons[reason]
    begun = [n for n in numbers if n.first_token_s is not None]
    assert value(metrics, "fourstep_prompt_tokens_total") == sum(n.prompt_tokens for n in begun)
    cached = sum(n.cached_tokens for n in begun)
    assert value(metrics, "fourstep_cached_tokens_total") == cached > 0
    preempted = sum(n.preemptions for n in numbers)
    assert value(metrics, "fourstep_preemptions_total") == preempted > 0


def test_times_are_those_of_the_numbers(busy: tuple[Scheduler, Metrics, list[Output]]) -> None:
    _, metrics, outputs = busy
    numbers = [end.numbers for end in ends_of(outputs)]
    firsts = [n.first_token_s for n in numbers if n.first_token_s is not None]
    for name, times in (
        ("first_token", firsts),
        ("queue", [n.queued_s for n in numbers]),
        ("answer", [n.total_s for n in numbers]),
    ):
        assert value(metrics, f"fourstep_{name}_seconds_count") == len(times)
        assert value(metrics, f"fourstep_{name}_seconds_sum") == pytest.approx(sum(times))
    between = len(steps_of(outputs)) - len(firsts)
    assert value(metrics, "fourstep_between_outputs_seconds_count") == between
    assert not metrics._last, "an answer that is over is forgotten"


def test_steps_by_shape(busy: tuple[Scheduler, Metrics, list[Output]]) -> None:
    made, metrics, outputs = busy
    counted = {
        (batch, width): sum(
            value(metrics, "fourstep_steps_total", batch=batch, width=width, drafted=drafted)
            for drafted in ("true", "false")
        )
        for batch, width in itertools.product("12", "1234")
    }
    assert sum(counted.values()) == sum(made.engine.steps.values())
    assert counted["2", "4"] > 0
    entries = sum(int(batch) * count for (batch, _), count in counted.items())
    assert entries >= sum(end.numbers.steps for end in ends_of(outputs))


def test_gauges_are_of_now() -> None:
    made, metrics = scheduler(), Metrics()
    metrics.watch(made)

    def answers() -> list[float]:
        phases = ("queued", "loading", "running")
        return [value(metrics, "fourstep_answers_now", phase=phase) for phase in phases]

    def blocks(pool: str) -> list[float]:
        states = ("used", "kept", "free")
        return [value(metrics, "fourstep_blocks", pool=pool, state=state) for state in states]

    assert answers() == [0, 0, 0]
    assert blocks("full") == blocks("sliding") == [0, 0, 9]
    for seed in range(4):
        made.submit(request(seed, seed))
    assert answers() == [4, 0, 0]
    made.step()
    assert answers() == [1, 2, 1]
    assert blocks("full")[0] > 0
    run(made, metrics)
    assert answers() == [0, 0, 0]
    used, kept, free = blocks("full")
    assert (used, kept + free) == (0, 9)
    assert kept == made.seats.memory.cache.full.kept > 0


def test_numbers_of_an_answer_add_up(busy: tuple[Scheduler, Metrics, list[Output]]) -> None:
    _, _, outputs = busy
    for end in ends_of(outputs):
        n = end.numbers
        assert len(n.step_drafted) == len(n.step_accepted) == n.steps
        assert sum(n.step_drafted) == sum(n.drafted_at)
        assert sum(n.step_accepted) == sum(n.right_at)
        if n.first_token_s is not None:
            assert n.prefill_s is not None
            assert n.decode_s is not None
            assert n.queued_s + n.prefill_s + n.decode_s == pytest.approx(n.total_s)
    firsts = [output for output in outputs if output.begun is not None]
    begun = [end for end in ends_of(outputs) if end.numbers.first_token_s is not None]
    assert len(firsts) == len(begun)
    for output in firsts:
        assert output.begun is not None
        assert (output.begun.tokens, output.begun.steps) == (1, 0)
        assert not output.begun.step_drafted


def test_waiting_in_vain_is_queue_time() -> None:
    times = iter(range(100))
    made = scheduler()
    made._clock = lambda: float(next(times))
    metrics = Metrics()
    made.submit(request("a"))  # at 0
    made.cancel("a")
    run(made, metrics)
    assert value(metrics, "fourstep_queue_seconds_count") == 1
    assert value(metrics, "fourstep_queue_seconds_sum") == 1
    assert value(metrics, "fourstep_first_token_seconds_count") == 0


def output(accepted: int, *, drafted: tuple[int, ...] = (7, 8)) -> Output:
    tokens = tuple(range(accepted + 1))
    step = Step(token_ids=tokens, drafted=drafted, accepted=accepted, finish_reason=None)
    return Output(request_id="a", index=0, step=step)


def test_the_alarm_is_for_drafts_that_are_never_right() -> None:
    """Fault J5: drafting that only costs is seen."""
    metrics = Metrics()

    def alarm() -> float:
        return value(metrics, "fourstep_drafts_never_right")

    metrics.seen([output(0)] * (BARREN - 1) + [output(0, drafted=())] * BARREN)
    assert alarm() == 0
    metrics.seen([output(0)])
    assert alarm() == 1
    metrics.seen([output(1)])
    assert alarm() == 0


def test_time_between_outputs_is_of_one_answer() -> None:
    times = iter((0.0, 1.0, 5.0, 9.0))
    metrics = Metrics(clock=lambda: next(times))
    metrics.seen([output(0)])
    metrics.seen([])
    metrics.seen([output(0)])
    end = End(reason="cancelled", numbers=Numbers(prompt_tokens=1))
    metrics.seen([Output(request_id="a", index=0, end=end)])
    assert value(metrics, "fourstep_between_outputs_seconds_count") == 1
    assert value(metrics, "fourstep_between_outputs_seconds_sum") == 5


def test_two_registries_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    one.seen([output(1)])
    assert value(one, "fourstep_tokens_total") == 2
    assert value(other, "fourstep_tokens_total") == 0


def test_a_service_tells_its_metrics() -> None:
    metrics = Metrics()
    with Service(lambda: scheduler(queued=2), observer=metrics) as service:
        outputs = list(service.submit(request("a", 1)))
        tokens = sum(len(step.token_ids) for step in steps_of(outputs))
        assert value(metrics, "fourstep_tokens_total") == tokens, "no later than the end is told"
    assert value(metrics, "fourstep_answers_now", phase="running") == 0
