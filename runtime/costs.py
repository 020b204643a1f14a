"""What a step costs on this SKU, by width: measured on the engines, kept in the artifact.

Knows how to run an engine for the clock (timing.py). Does not know how costs are used (width.py). A
model that does not fit this machine's memory is not timed. Keeps true: all engines take turns, and
costs that others on the machine may have spoilt are told.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

from graphs.artifact import Artifact
from graphs.config import ModelConfig
from graphs.manifest import Costs, Manifest
from graphs.trees import nbytes_of
from graphs.weights import ModelWeights
from runtime.engine import Engine, Precision
from runtime.exchange import Turn
from runtime.generate import generate
from runtime.numbers import summarise
from runtime.programs import programs_of
from runtime.ram import total
from runtime.request import SamplingParams
from runtime.timing import timed

ADVICE = "--spec-tokens auto goes by it, so build again in a quiet hour (remove the folder first)"
_PROMPT_TOKENS, _PRIOR_TOKENS = 48, 96
LEAST_CONTEXT = 1 + _PRIOR_TOKENS  # what is timed has to fit
_ROOM = 0.8  # of the machine's memory
# A prior is an opinion, not a certainty: a request's own drafts move it.
_LEAST, _MOST = 0.05, 0.95


def measure(
    config: ModelConfig,
    weights: ModelWeights,
    artifact: Artifact,
    progress: Callable[[str, int, int], object],
) -> Manifest:
    """The artifact's manifest with its costs filled in, if the model fits in memory."""
    manifest = artifact.manifest
    if nbytes_of(weights) > _ROOM * total():
        return manifest
    progress("timing", 0, 1)
    precision: Precision = "fp32" if manifest.precision == "fp32" else "bf16"
    engine = Engine(
        config,
        weights,
        programs=programs_of(artifact),
        plan=manifest.plan,
        precision=precision,
        draft_tokens=min(manifest.depths, manifest.plan.widths[-1] - 1),
        context=min(manifest.plan.contexts[0], 1024),
        slots=manifest.plan.batches[-1],
    )
    costs, doubt = step_costs(engine)
    progress("timing", 1, 1)
    if doubt is not None:
        progress(f"the timing is doubtful, {doubt}: {ADVICE}", 0, 0)
    return dataclasses.replace(manifest, costs=costs)


def step_costs(engine: Engine) -> tuple[Costs, str | None]:
    """Time every decode and observe engine, and see how often the model's drafts hold; why not to
    believe the times."""
    prompt = [engine.config.bos_id] + [7 + i % 5 for i in range(_PROMPT_TOKENS - 1)]
    prompt = [token % engine.config.vocab_size for token in prompt]
    for slot in range(engine.state.slots):
        engine.prefill(prompt, slot, SamplingParams())
    made = timed(list(_runs(engine, len(prompt))))
    verify = _named(made.quick, "verify ")
    whole = _named(made.quick, "whole ")
    costs = Costs(
        verify=verify,
        draft={shape: max(0.0, whole[shape] - verify[shape]) for shape in whole},
        observe=_named(made.quick, "observe "),
        acceptance=_prior(engine),
    )
    return costs, made.doubt


def _runs(engine: Engine, position: int) -> Iterator[tuple[str, Callable[[], object]]]:
    for batch, width in engine.shapes:
        turns = _turns(batch, width, position, engine.config.vocab_size)
        yield f"verify {batch}x{width}", lambda t=turns: engine.decode(t, draft=False)
        if engine.draft_tokens:
            yield f"whole {batch}x{width}", lambda t=turns: engine.decode(t)
    for rows in engine.catch_up.sizes:
        used = min(rows, position)
        yield f"observe {rows}", lambda r=used: engine.observe(0, position - 1, r)


def _turns(batch: int, width: int, position: int, vocab: int) -> list[Turn]:
    """Every row another token: slots that said the same would share their experts."""
    tokens = itertools.count(1)
    rows = [[next(tokens) % vocab for _ in range(width)] for _ in range(batch)]
    return [
        Turn(slot=slot, position=position, token=token, drafts=tuple(drafts))
        for slot, (token, *drafts) in enumerate(rows)
    ]


def _named(times: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): round(value, 1)
        for name, value in times.items()
        if name.startswith(prefix)
    }


def _prior(engine: Engine) -> tuple[float, ...]:
    """Conditional acceptance of each draft position in text that the model writes by itself."""
    if not engine.draft_tokens:
        return ()
    params = SamplingParams(max_tokens=_PRIOR_TOKENS, ignore_eos=True)
    steps = list(generate(engine, [engine.config.bos_id], params))
    rates = summarise(1, steps).acceptance_by_position
    pairs = itertools.pairwise((1.0, *rates))
    shares = [rate / before if before else 0.0 for before, rate in pairs]
    shares += [_LEAST] * (engine.draft_tokens - len(shares))
    return tuple(round(min(_MOST, max(_LEAST, share)), 3) for share in shares)
