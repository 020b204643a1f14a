"""One answer's decode steps: which drafts to verify, and when the MTP layers have to catch up.

Knows one slot, a width policy and the request's rules. Does not know other slots, text or ends.
Keeps true: drafts are verified only right after they were made, and rows that were decoded without
drafting are shown to the MTP layers before these draft again.
"""

from runtime.engine import Engine
from runtime.exchange import Committed, Mask, Turn
from runtime.rules import Rules
from runtime.width import WidthPolicy


class Decoding:
    """`begin` after the prompt, then `turn`, an engine's step, and `take`, again and again."""

    def __init__(self, engine: Engine, policy: WidthPolicy, rules: Rules) -> None:
        self._engine, self._slot = engine, -1
        self.policy, self._rules = policy, rules
        self._drafts: tuple[int, ...] = ()
        self._wanted = 0
        self._offered = 0
        self.unseen = 0  # committed rows that the MTP layers have not run over
        self.skipped_to: int | None = None  # end of the rows that they left out

    def first_mask(self) -> Mask | None:
        """What the first token behind the prompt may be."""
        _, mask = self._rules.window(())
        return mask

    def left_out(self, start: int, end: int, rows: int) -> int:
        """How many rows the MTP layers leave out of the prompt's last chunk, from `start` to `end`,
        with the engine of `rows`: all that one look makes up for, where the policy would not draft
        behind it."""
        if self.policy.drafts() or rows not in self._engine.catch_up.sizes:
            return 0
        # And the row before: it may have seen another text's token ahead.
        return end - max(0, start - 1)

    def begin(self, slot: int, committed: Committed, unseen: int = 0) -> None:
        """The prompt was run in `slot`, with this result; `unseen` rows were left out."""
        self._slot, self._drafts, self.unseen = slot, committed.drafts, unseen

    def set_back(self) -> None:
        """The slot was taken; `begin` comes again."""
        self._slot, self._drafts, self.unseen = -1, (), 0

    def turn(self, token: int, position: int) -> Turn:
        """The step from the last committed token, at `position`."""
        self._wanted = self.policy.drafts()
        offered = self._drafts[: self._wanted]
        legal, mask = self._rules.window(offered)
        self._offered = len(offered)
        return Turn(
            slot=self._slot, position=position, token=token, drafts=offered[:legal], mask=mask
        )

    @property
    def wants_drafts(self) -> bool:
        """Whether the step of the last turn should end with drafts for the next."""
        return self._wanted > 0 and self.unseen == 0

    def take(self, committed: Committed, position: int, *, drafted: bool) -> int | None:
        """What the step from `position` committed, and whether it made drafts. After how many of
        the tokens nothing may follow, if so: see Rules.commit."""
        ended = self._rules.commit(committed.tokens)
        # A draft that the rules forbid was wrong: its row would not have drawn it.
        self.policy.verified(self._offered, committed.accepted)
        if drafted and self.unseen == 0:
            self._drafts = committed.drafts
        else:
            self._drafts = ()
            self.unseen += len(committed.tokens)
            self._look(position + len(committed.tokens) - 1)
        return ended

    def first(self, committed: Committed) -> int | None:
        """As `take`, of the token behind the prompt."""
        return self._rules.commit(committed.tokens)

    def _look(self, end: int) -> None:
        """Catch up when the policy would draft, or wants to know whether it should."""
        if not self._wanted and not self.policy.looks(self.unseen):
            return
        if self.unseen > self._engine.catch_up.reach:
            self.skipped_to = end
        seen = self._engine.observe(self._slot, end, self.unseen)
        self.policy.observed(seen.hits, seen.trials)
        self._drafts, self.unseen = seen.drafts, 0
