"""How much one listener's requests have lately given, for gateways that choose by load.

Knows tokens and a clock. Does not know the engine, whose load is asked of the service. Keeps true:
numbers are of the last WINDOW seconds; a request that is over is in none of the waiting ones.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

WINDOW = 10.0  # seconds


@dataclass(kw_only=True)
class Traffic:
    """`received`: when the last request came, in seconds of the epoch."""

    clock: Callable[[], float] = time.monotonic
    received: float = 0.0
    _waiting: dict[str, int] = field(default_factory=dict)  # prompt tokens of a request
    # When; tokens given; prompt tokens run, and those that the prefix cache had.
    _lately: deque[tuple[float, int, int, int]] = field(default_factory=deque)

    def came(self, request_id: str, prompt: int) -> None:
        """A request was sent to the engine, which may yet refuse it."""
        self.received = time.time()
        self._waiting[request_id] = prompt

    def began(self, request_id: str, prompt: int, cached: int) -> None:
        """The first token of an answer is there."""
        self._waiting.pop(request_id, None)
        self._note(0, prompt, cached)

    def gave(self, tokens: int) -> None:
        self._note(tokens, 0, 0)

    def over(self, request_id: str) -> None:
        """It ended, or nobody listens any more."""
        self._waiting.pop(request_id, None)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of requests that have given none."""
        return sum(self._waiting.values())

    @property
    def tokens_per_second(self) -> float:
        self._forget()
        return sum(given for _, given, _, _ in self._lately) / WINDOW

    @property
    def cached_share(self) -> float:
        """Of prompts' tokens, those that the prefix cache had."""
        self._forget()
        asked = sum(prompt for _, _, prompt, _ in self._lately)
        return sum(cached for _, _, _, cached in self._lately) / asked if asked else 0.0

    def _note(self, given: int, prompt: int, cached: int) -> None:
        self._forget()
        self._lately.append((self.clock(), given, prompt, cached))

    def _forget(self) -> None:
        oldest = self.clock() - WINDOW
        while self._lately and self._lately[0][0] < oldest:
            self._lately.popleft()
