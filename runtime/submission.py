"""A request on its way to the engine's thread, and what is open of it there.

Knows who asked for it. Does not know how it is run. Keeps true: whether it was admitted is told
once.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from runtime.answer import End, Output, Request
from runtime.numbers import Numbers

if TYPE_CHECKING:
    from runtime.service import Service

Deliver = Callable[[Output], None]


class Submission:
    """A request on its way. `admitted` is done once it is queued, or has what refused it:
    ValueError, QueueFullError, ServiceClosedError, ServiceFailedError."""

    def __init__(self, service: "Service", request: Request, deliver: Deliver) -> None:
        self._service = service
        self.request, self.deliver = request, deliver
        self.admitted: Future[None] = Future()
        self.open = set(range(request.params.n))  # answers that have not ended

    def cancel(self) -> None:
        """As Service.cancel, of this request and no other that has its id."""
        self._service.drop(self)

    def failed(self, index: int, message: str) -> Output:
        """The end of an answer that the engine will not give."""
        numbers = Numbers(prompt_tokens=len(self.request.prompt))
        end = End(reason="failed", numbers=numbers, message=message)
        return Output(request_id=self.request.id, index=index, end=end)
