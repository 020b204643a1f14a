"""What goes into an engine call and what comes out of it, as plain data.

Knows tokens and positions. Does not know tensors or requests. Nobody changes one once it is made;
they are not frozen because that alone took a tenth of a step's bookkeeping.
"""

from dataclasses import dataclass

from graphs.plan import MAX_WIDTH
from graphs.sampling import BitSet

Mask = BitSet  # int32 [rows, U]: a bit set of tokens a row


@dataclass(kw_only=True, slots=True)
class Turn:
    """One slot's part of a decode step: the last committed token, where it stands, the drafts.

    `mask`, one row for the token and one for each draft, says what each row may draw; None: all.
    """

    slot: int
    position: int
    token: int
    drafts: tuple[int, ...] = ()
    mask: Mask | None = None

    def ints(self) -> list[int]:
        """As graphs.buffers.DecodeInputs has it: one row of `ints`."""
        pad = [0] * (MAX_WIDTH - 1 - len(self.drafts))
        return [self.slot, self.position, len(self.drafts), self.token, *self.drafts, *pad]


@dataclass(kw_only=True, slots=True)
class Committed:
    """What one call committed for one slot, and the drafts for its next step, if it drafted.

    logprobs are the model's own, of each token, before temperature and filters.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    accepted: int
    drafts: tuple[int, ...]


@dataclass(kw_only=True, slots=True)
class Observed:
    """hits[d] of trials[d] predictions of MTP depth d were right; drafts are for the next step."""

    hits: tuple[int, ...]
    trials: tuple[int, ...]
    drafts: tuple[int, ...]
