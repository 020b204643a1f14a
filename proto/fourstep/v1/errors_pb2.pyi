from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_UNSUPPORTED: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_TENANT_BUSY: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_READ: _ClassVar[ErrorReason]
    ERROR_REASON_LEAVING: _ClassVar[ErrorReason]
    ERROR_REASON_CANCELLED: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE: _ClassVar[ErrorReason]
    ERROR_REASON_FAULT: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_ALLOWED: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_LARGE: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID: ErrorReason
ERROR_REASON_UNSUPPORTED: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_TENANT_BUSY: ErrorReason
ERROR_REASON_NOT_READ: ErrorReason
ERROR_REASON_LEAVING: ErrorReason
ERROR_REASON_CANCELLED: ErrorReason
ERROR_REASON_DEADLINE: ErrorReason
ERROR_REASON_FAULT: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_NOT_ALLOWED: ErrorReason
ERROR_REASON_TOO_LARGE: ErrorReason

class ErrorDetail(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: ErrorReason
    def __init__(self, reason: _Optional[_Union[ErrorReason, str]] = ...) -> None: ...
