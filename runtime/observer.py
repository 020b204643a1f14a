"""Who is shown what a service does, so that it can be counted: runtime.metrics does.

Knows outputs and refusals as they happen. Does not know what is made of them. Keeps true: a service
always has an observer, if need be one that looks at nothing.
"""

from collections.abc import Sequence
from typing import Protocol

from runtime.answer import Output
from runtime.scheduler import Scheduler


class Observer(Protocol):
    """Called on the service's thread; `refused` on any."""

    def watch(self, scheduler: Scheduler) -> None: ...

    def refused(self, error: Exception) -> None: ...

    def seen(self, outputs: Sequence[Output]) -> None: ...


class Nobody:
    """Looks at nothing."""

    def watch(self, scheduler: Scheduler) -> None:
        pass

    def refused(self, error: Exception) -> None:
        pass

    def seen(self, outputs: Sequence[Output]) -> None:
        pass
