"""Who is shown what a service does, so that it can be counted: runtime.metrics does.

Knows outputs as they happen. Does not know what is made of them. Keeps true: a service
always has an observer, if need be one that looks at nothing.
"""

from collections.abc import Sequence
from typing import Protocol

from runtime.answer import Output
from runtime.scheduler import Scheduler


class Observer(Protocol):
    """Called on the service's thread."""

    def watch(self, scheduler: Scheduler) -> None: ...

    def seen(self, outputs: Sequence[Output]) -> None: ...


class Nobody:
    """Looks at nothing."""

    def watch(self, scheduler: Scheduler) -> None:
        pass

    def seen(self, outputs: Sequence[Output]) -> None:
        pass
