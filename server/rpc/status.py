"""Which gRPC status an error of the runtime is, and nothing of a prompt in its text.

Knows errors by their kind. Keeps true: a caller's mistake is INVALID_ARGUMENT and not worth a
retry; what another worker could do now is RESOURCE_EXHAUSTED or UNAVAILABLE; a fault of ours is
INTERNAL, named and without a trace, to those requests that it ended; no text is longer than a
client takes, which would see another status for it.
"""

from collections.abc import Iterable
from typing import NamedTuple

import grpc
from fourstep.v1 import errors_pb2 as pb
from google.protobuf.any_pb2 import Any
from google.rpc.status_pb2 import Status

from runtime.answer import End
from runtime.scheduler import QueueFullError
from runtime.service import ServiceClosedError, ServiceFailedError
from server.rpc.served import CancelledRequestError, DrainingError, TenantBusyError


class UnsupportedError(NotImplementedError):
    """Something that is part of a protocol and that this model or version does not do."""


class Ending(NamedTuple):
    """What a call ends with."""

    code: grpc.StatusCode
    details: str
    reason: pb.ErrorReason


_KINDS: tuple[tuple[type[Exception], grpc.StatusCode, pb.ErrorReason], ...] = (
    (UnsupportedError, grpc.StatusCode.UNIMPLEMENTED, pb.ERROR_REASON_UNSUPPORTED),
    (QueueFullError, grpc.StatusCode.RESOURCE_EXHAUSTED, pb.ERROR_REASON_QUEUE_FULL),
    (TenantBusyError, grpc.StatusCode.RESOURCE_EXHAUSTED, pb.ERROR_REASON_TENANT_BUSY),
    (DrainingError, grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_LEAVING),
    (CancelledRequestError, grpc.StatusCode.CANCELLED, pb.ERROR_REASON_CANCELLED),
    (ServiceClosedError, grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_LEAVING),
    (ServiceFailedError, grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_FAULT),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT, pb.ERROR_REASON_INVALID),
)
ERRORS = tuple(kind for kind, _, _ in _KINDS)
Trailing = tuple[tuple[str, bytes], ...]
_DETAILS = "grpc-status-details-bin"
# Of what is said without a reason of its own.
_REASONS = {
    grpc.StatusCode.INVALID_ARGUMENT: pb.ERROR_REASON_INVALID,
    grpc.StatusCode.UNIMPLEMENTED: pb.ERROR_REASON_UNSUPPORTED,
    grpc.StatusCode.INTERNAL: pb.ERROR_REASON_FAULT,
    grpc.StatusCode.DEADLINE_EXCEEDED: pb.ERROR_REASON_DEADLINE,
    grpc.StatusCode.UNAUTHENTICATED: pb.ERROR_REASON_UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: pb.ERROR_REASON_NOT_ALLOWED,
}
NOT_READ = Ending(
    *(grpc.StatusCode.RESOURCE_EXHAUSTED, "the answers were not read", pb.ERROR_REASON_NOT_READ)
)
# Of a text: each is up to 12 bytes of one header and 6 of another, and clients take 8 KiB of these.
MAX_CHARS = 400
_ENDS = {
    "cancelled": Ending(grpc.StatusCode.CANCELLED, "cancelled", pb.ERROR_REASON_CANCELLED),
    "deadline": Ending(
        grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline has passed", pb.ERROR_REASON_DEADLINE
    ),
}


def trailing(code: grpc.StatusCode, details: str, reason: pb.ErrorReason | None) -> Trailing:
    """The metadata that says it to programs; `reason` as for `reason_for`."""
    packed = Any()
    packed.Pack(pb.ErrorDetail(reason=reason_for(code, reason)))
    status = Status(code=code.value[0], message=details, details=[packed])
    return ((_DETAILS, status.SerializeToString()),)


def reason_for(code: grpc.StatusCode, reason: pb.ErrorReason | None) -> pb.ErrorReason:
    """`reason`, or what the code says where there is none of its own."""
    return _REASONS[code] if reason is None else reason


def reason_in(metadata: Iterable[tuple[str, bytes | str]] | None) -> str | None:
    """The name of the reason that `trailing` has put there."""
    for key, value in metadata or ():
        if key == _DETAILS:
            assert isinstance(value, bytes)
            detail = pb.ErrorDetail()
            Status.FromString(value).details[0].Unpack(detail)
            return name_of(detail.reason)
    return None


def name_of(reason: int) -> str:
    return pb.ErrorReason.Name(reason).removeprefix("ERROR_REASON_").lower()


def status_of(error: Exception) -> Ending:
    """Of an error in ERRORS."""
    code, reason = next((code, why) for kind, code, why in _KINDS if isinstance(error, kind))
    return Ending(code, _short(str(error)), reason)


def status_of_end(end: End, *, cut: bool = False) -> Ending | None:
    """What the call ends with because an answer did; None where the answer is whole. `cut`: what
    is cancelled now, the worker has cancelled."""
    if end.reason in ("stop", "length"):
        return None
    if cut and end.reason == "cancelled":
        left = "the worker went out of service"
        return Ending(grpc.StatusCode.UNAVAILABLE, left, pb.ERROR_REASON_LEAVING)
    text = _short(end.message or "the engine failed")
    if end.reason == "invalid":
        return Ending(grpc.StatusCode.INVALID_ARGUMENT, text, pb.ERROR_REASON_INVALID)
    failed = Ending(grpc.StatusCode.INTERNAL, text, pb.ERROR_REASON_FAULT)
    return _ENDS.get(end.reason, failed)


def _short(text: str) -> str:
    """Without its middle: what is wrong may stand first and last."""
    part = MAX_CHARS // 2
    return text if len(text) <= MAX_CHARS else f"{text[:part]} ... {text[-part:]}"
