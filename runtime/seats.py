"""The slots of one engine and the blocks in them: given to answers, extended, taken back.

Knows answers, slots and the engine's memory. Does not know queues or who should wait. Keeps true: a
slot has one answer or none; an answer without a slot has no blocks.
"""

from graphs.plan import MAX_WIDTH
from runtime.answer import Answer
from runtime.engine import Engine
from runtime.memory import Memory


class Seats:
    """Of an engine that was made with pools."""

    def __init__(self, engine: Engine) -> None:
        assert engine.pools is not None, "the engine maps its slots by itself"
        self._engine = engine
        self.memory = Memory(
            engine.state,
            engine.config,
            engine.pools,
            depths=len(engine.weights.mtp) if engine.draft_tokens else 0,
            reach=engine.catch_up.reach if engine.draft_tokens else 0,
            largest_call=engine.largest_call,
        )
        self._free = list(range(engine.state.slots))[::-1]
        self._waits: Answer | None = None  # found no room, and nothing was given back since

    @property
    def free(self) -> int:
        return len(self._free)

    def check(self, positions: int) -> None:
        """ValueError if a text of so many positions can never have its blocks."""
        needed, there = self.memory.needed(positions + MAX_WIDTH), self.memory.sizes
        for name in ("full", "sliding"):
            if getattr(needed, name) > getattr(there, name):
                raise ValueError(
                    f"{positions} positions need {getattr(needed, name)} {name} blocks, "
                    f"and there are {getattr(there, name)}"
                )

    def open(self, answer: Answer) -> bool:
        """Give the answer a slot and what the cache has of its text, if all of the text fits beside
        the others' just now."""
        if answer is self._waits:
            return False
        slot, request, tokens = self._free[-1], answer.request, answer.tokens
        reuse = request.params.prompt_logprobs is None
        cached = self.memory.open(slot, tokens, request.salt, reuse=reuse)
        if not self.memory.fits(slot, len(tokens) + MAX_WIDTH):
            self.memory.close(slot, tokens, 0, 0)
            self._waits = answer
            return False
        self._free.pop()
        answer.slot, answer.computed = slot, cached
        said = tokens[len(request.prompt) :]
        self._engine.assign(slot, request.prompt, answer.params, said)
        return True

    def reserve(self, answer: Answer, positions: int) -> bool:
        """Blocks for the answer's first `positions` positions; False if there are too few."""
        return self.memory.reserve(answer.slot, positions)

    def advance(self, answer: Answer) -> None:
        """The answer's `computed` and `filled` have changed."""
        self._tell_skipped(answer)
        self.memory.advance(answer.slot, answer.tokens, answer.computed, answer.filled)

    def close(self, answer: Answer) -> None:
        """Take the slot and the blocks back; whole blocks stay in the cache."""
        if answer.slot < 0:
            return
        self._waits = None
        self._tell_skipped(answer)
        # Rows behind the end were run too, but are nobody's text.
        computed = min(answer.computed, len(answer.tokens))
        self.memory.close(answer.slot, answer.tokens, computed, min(answer.filled, computed))
        self._free.append(answer.slot)
        answer.slot = -1

    def _tell_skipped(self, answer: Answer) -> None:
        if answer.decoding.skipped_to is not None:
            self.memory.skipped(answer.slot, answer.decoding.skipped_to)
            answer.decoding.skipped_to = None
