from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("name", "config_digest", "vocab_size", "context", "stop_token_ids", "bos_token_id", "draft_tokens", "chat", "images", "constraints", "max_answers", "max_logprobs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    MAX_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    name: str
    config_digest: str
    vocab_size: int
    context: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token_id: int
    draft_tokens: int
    chat: bool
    images: bool
    constraints: _containers.RepeatedScalarFieldContainer[str]
    max_answers: int
    max_logprobs: int
    def __init__(self, name: _Optional[str] = ..., config_digest: _Optional[str] = ..., vocab_size: _Optional[int] = ..., context: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., bos_token_id: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., chat: _Optional[bool] = ..., images: _Optional[bool] = ..., constraints: _Optional[_Iterable[str]] = ..., max_answers: _Optional[int] = ..., max_logprobs: _Optional[int] = ...) -> None: ...

class GetEngineRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetEngineResponse(_message.Message):
    __slots__ = ("version", "compiler", "device", "isa", "precision", "engines", "artifact_sha256")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPILER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ISA_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_SHA256_FIELD_NUMBER: _ClassVar[int]
    version: str
    compiler: str
    device: str
    isa: str
    precision: str
    engines: _containers.RepeatedCompositeFieldContainer[Engine]
    artifact_sha256: str
    def __init__(self, version: _Optional[str] = ..., compiler: _Optional[str] = ..., device: _Optional[str] = ..., isa: _Optional[str] = ..., precision: _Optional[str] = ..., engines: _Optional[_Iterable[_Union[Engine, _Mapping]]] = ..., artifact_sha256: _Optional[str] = ...) -> None: ...

class Engine(_message.Message):
    __slots__ = ("name", "captured")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_FIELD_NUMBER: _ClassVar[int]
    name: str
    captured: bool
    def __init__(self, name: _Optional[str] = ..., captured: _Optional[bool] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("queued", "loading", "running", "slots", "blocks", "blocks_used", "draining")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    LOADING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    queued: int
    loading: int
    running: int
    slots: int
    blocks: int
    blocks_used: int
    draining: bool
    def __init__(self, queued: _Optional[int] = ..., loading: _Optional[int] = ..., running: _Optional[int] = ..., slots: _Optional[int] = ..., blocks: _Optional[int] = ..., blocks_used: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace_seconds", "timeout_seconds")
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    grace_seconds: float
    timeout_seconds: float
    def __init__(self, grace_seconds: _Optional[float] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
