"""A tiny random model behind a scheduler, and what its answers are alone, for tests of services.

Keeps true: requests fit the pools, though not all at once, so that answers wait and start again.
"""

from collections.abc import Iterable
from functools import cache

from graphs.plan import EnginePlan
from runtime.answer import Output, Request
from runtime.engine import Engine
from runtime.generate import generate
from runtime.pools import PoolSizes
from runtime.request import SamplingParams
from runtime.scheduler import Limits, Scheduler
from tests.graphs.random_model import random_model
from tests.graphs.whole import Model

PLAN = EnginePlan(batches=(1, 2), prefill=(16,))
PROMPTS = ((1, 2, 3), tuple(range(12)) * 7, (5,) * 70, (7, 0, 7))
TOKENS = 24


@cache
def _model() -> Model:
    return random_model("four groups, NVFP4")


def engine(pools: PoolSizes | None = None) -> Engine:
    model = _model()
    return Engine(
        *(model.config, model.weights),
        precision="fp32",
        plan=PLAN,
        draft_tokens=3,
        context=512,
        slots=3,
        pools=pools,
    )


def scheduler(queued: int = 64, blocks: int = 9) -> Scheduler:
    pools = PoolSizes(full=blocks, sliding=blocks)
    return Scheduler(engine(pools), limits=Limits(queued=queued))


def params(seed: int, *, n: int = 1, max_tokens: int = TOKENS) -> SamplingParams:
    return SamplingParams(temperature=0.9, seed=seed, n=n, max_tokens=max_tokens, ignore_eos=True)


def request(name: object, seed: int = 0, *, n: int = 1, max_tokens: int = TOKENS) -> Request:
    """The seed says which prompt too."""
    prompt = PROMPTS[seed % len(PROMPTS)]
    return Request(id=str(name), prompt=prompt, params=params(seed, n=n, max_tokens=max_tokens))


@cache
def alone(seed: int, n: int = 1) -> list[list[int]]:
    """The tokens of each of the request's answers, one after the other on an engine of its own."""
    made, prompt = engine(), PROMPTS[seed % len(PROMPTS)]
    return [
        [token for step in generate(made, prompt, each) for token in step.token_ids]
        for each in params(seed, n=n).answers()
    ]


def told(outputs: Iterable[Output], index: int = 0) -> list[int]:
    """The tokens that one answer put out."""
    return [
        token
        for output in outputs
        if output.index == index and output.step is not None
        for token in output.step.token_ids
    ]
