"""Which gRPC status an error of the runtime is, and nothing of a prompt in its text.

Knows errors by their kind. Keeps true: a caller's mistake is INVALID_ARGUMENT and not worth a
retry; what another worker could do now is RESOURCE_EXHAUSTED or UNAVAILABLE; a fault of ours is
INTERNAL, named and without a trace, to those requests that it ended; no text is longer than a
client takes, which would see another status for it.
"""

import grpc

from runtime.answer import End
from runtime.scheduler import QueueFullError
from runtime.service import ServiceClosedError, ServiceFailedError
from server.rpc.served import CancelledRequestError, DrainingError, TenantBusyError


class UnsupportedError(NotImplementedError):
    """Something that is part of a protocol and that this model or version does not do."""


_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (UnsupportedError, grpc.StatusCode.UNIMPLEMENTED),
    (QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TenantBusyError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (DrainingError, grpc.StatusCode.UNAVAILABLE),
    (CancelledRequestError, grpc.StatusCode.CANCELLED),
    (ServiceClosedError, grpc.StatusCode.UNAVAILABLE),
    (ServiceFailedError, grpc.StatusCode.UNAVAILABLE),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT),
)
ERRORS = tuple(kind for kind, _ in _CODES)
MAX_CHARS = 500  # of a text; each is up to 12 bytes of a header, and clients take 8 KiB of these
_ENDS = {
    "cancelled": (grpc.StatusCode.CANCELLED, "cancelled"),
    "deadline": (grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline has passed"),
}


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Of an error in ERRORS."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    return code, _short(str(error))


def status_of_end(end: End, *, cut: bool = False) -> tuple[grpc.StatusCode, str] | None:
    """What the call ends with because an answer did; None where the answer is whole. `cut`: what
    is cancelled now, the worker has cancelled."""
    if end.reason in ("stop", "length"):
        return None
    if cut and end.reason == "cancelled":
        return grpc.StatusCode.UNAVAILABLE, "the worker went out of service"
    if end.reason == "invalid":
        return grpc.StatusCode.INVALID_ARGUMENT, _short(end.message)
    failed = grpc.StatusCode.INTERNAL, _short(end.message or "the engine failed")
    return _ENDS.get(end.reason, failed)


def _short(text: str) -> str:
    """Without its middle: what is wrong may stand first and last."""
    part = MAX_CHARS // 2
    return text if len(text) <= MAX_CHARS else f"{text[:part]} ... {text[-part:]}"
