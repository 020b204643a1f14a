"""Random requests, cancelled, starved, flooded and made to fail, on a tiny model: the scheduler as
a state machine.

The machine holds every output against the request run alone, and the blocks after every step; here
is what happens to it. Keeps true: whatever happened, in the end everything is given back.
"""

import hypothesis
import hypothesis.stateful
from hypothesis import strategies as st

from runtime import failpoints
from runtime.pools import PoolSizes
from runtime.request import SamplingParams
from runtime.scheduler import Limits, QueueFullError
from tests.runtime.machine import NARROW, WIDE, Machine, tokens

# Prompts around ends of blocks; the texts of one base share all that is common of their lengths.
LENGTHS = st.sampled_from((3, 63, 64, 65, 66, 67, 128, 129, 131, 200))
BASES = [tokens(200, seed=1), tokens(65, seed=1) + tokens(135, seed=2)]
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from((0.0, 1.0)),
    seed=st.integers(0, 1),
    max_tokens=st.sampled_from((1, 3, 20, 70)),
    n=st.sampled_from((1, 1, 2)),
    frequency_penalty=st.sampled_from((0.0, 0.5)),
    stop_token_ids=st.sampled_from(((), (3,))),
    logprobs=st.sampled_from((None, None, 1)),
    prompt_logprobs=st.sampled_from((None, None, None, 0)),
)


class Flood(hypothesis.stateful.RuleBasedStateMachine):
    shape = NARROW
    pools = PoolSizes(full=8, sliding=12)

    def __init__(self) -> None:
        super().__init__()
        failpoints.arm({})
        self.machine = Machine(
            *(self.shape,), pools=self.pools, slots=3, limits=Limits(queued=5, chunk_rows=16)
        )
        self.failed = 0

    @hypothesis.stateful.rule(
        base=st.sampled_from(BASES),
        length=LENGTHS,
        more=st.integers(0, 3),
        params=PARAMS,
        priority=st.integers(0, 1),
        salt=st.sampled_from(("", "", "other")),
        drafts=st.sampled_from((None, None, 0, 1)),
        patience=st.sampled_from((None, None, 6)),
    )
    def submit(
        self,
        base: list[int],
        length: int,
        more: int,
        params: SamplingParams,
        priority: int,
        salt: str,
        drafts: int | None,
        patience: int | None,
    ) -> None:
        machine = self.machine
        waiting = machine.scheduler.load["queued"]
        try:
            machine.submit(
                *(base[:length] + [5] * more, params),
                priority=priority,
                salt=salt,
                draft_tokens=drafts,
                deadline=None if patience is None else machine.now + patience,
            )
        except QueueFullError:
            assert waiting + params.n > 5

    @hypothesis.stateful.rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.machine.step()

    @hypothesis.stateful.rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        machine = self.machine
        if machine.requests:
            name = data.draw(st.sampled_from(sorted(machine.requests)))
            machine.scheduler.cancel(name)
            assert all(answer.request.id != name for answer in machine.live)
            machine.check()

    @hypothesis.stateful.rule(name=st.sampled_from(failpoints.ONE_CALL), call=st.integers(1, 3))
    def fail(self, name: str, call: int) -> None:
        failpoints.arm({name: call})

    @hypothesis.stateful.rule()
    def forget(self) -> None:
        self.machine.memory.cache.clear()
        self.machine.check()

    @hypothesis.stateful.rule(data=st.data())
    def look_into_memory(self, data: st.DataObject) -> None:
        live = [answer for answer in self.machine.live if answer.computed]
        if live:
            self.machine.check_rows(data.draw(st.sampled_from(live)))

    def teardown(self) -> None:
        self.machine.run()
        failpoints.arm({})
        cache = self.machine.memory.cache
        cache.clear()
        assert (len(cache.full.free), len(cache.sliding.free)) == tuple(vars(self.pools).values())
        assert len(cache) == 0


class WideFlood(Flood):
    shape = WIDE
    pools = PoolSizes(full=9, sliding=14)


# Shrinking would take minutes; the steps of a failure are few as it is.
SETTINGS = hypothesis.settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    phases=(hypothesis.Phase.generate,),
)
TestFlood = Flood.TestCase
TestWideFlood = WideFlood.TestCase
TestFlood.settings = TestWideFlood.settings = SETTINGS
