"""Calls of fourstep.v1 as data, and grpcio making them.

Knows gRPC and the contract's messages as JSON. Does not know what an answer should be. Keeps true:
the other client, client.js, is given the same data and gives back the same fields.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from fourstep.v1 import control_pb2, inference_pb2
from google.protobuf import json_format, message_factory

_METHODS = {
    method.name: method
    for file in (inference_pb2, control_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """`path`: where it is sent, if not to its own method. `cancel_after`: so many messages; 0: at
    once. `during`: a call of the same method that is being answered meanwhile."""

    method: str = "Generate"
    request: dict[str, Any] = field(default_factory=dict)
    path: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    deadline_s: float | None = None
    cancel_after: int | None = None
    gzip: bool = False
    during: "Call | None" = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The status, and the messages that came before it as JSON with the contract's names."""

    code: str
    details: str
    messages: list[dict[str, Any]]


def with_grpcio(address: str, calls: list[Call]) -> list[Result]:
    return [_channelled(address, call) for call in calls]


def _channelled(address: str, call: Call) -> Result:
    compression = grpc.Compression.Gzip if call.gzip else None
    # Channels with the same options share a connection otherwise.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options, compression=compression) as channel:
        if call.during is None:
            return _once(channel, call)
        held = _begin(channel, call.during)
        next(held)
        result = _once(channel, call)
        held.cancel()
        return result


def _begin(channel: grpc.Channel, call: Call) -> Any:
    method = _METHODS[call.method]
    sort = message_factory.GetMessageClass(method.input_type)
    kind = channel.unary_stream if method.server_streaming else channel.unary_unary
    stub: Any = kind(
        call.path or f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=sort.SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    metadata = [(k, v.encode() if k.endswith("-bin") else v) for k, v in call.metadata]
    request = json_format.ParseDict(call.request, sort())
    make = stub if method.server_streaming else stub.future
    return make(request, metadata=metadata, timeout=call.deadline_s)


def _once(channel: grpc.Channel, call: Call) -> Result:
    begun, messages = _begin(channel, call), list[dict[str, Any]]()
    if call.cancel_after == 0:
        begun.cancel()
    try:
        for message in _heard(begun, call):
            messages.append(
                json_format.MessageToDict(
                    message,
                    preserving_proto_field_name=True,
                    always_print_fields_with_no_presence=True,
                )
            )
            if len(messages) == call.cancel_after:
                begun.cancel()
    except (grpc.RpcError, grpc.FutureCancelledError):
        pass  # the status says it too
    return Result(code=begun.code().name, details=begun.details() or "", messages=messages)


def _heard(begun: Any, call: Call) -> Iterator[Any]:
    if _METHODS[call.method].server_streaming:
        yield from begun
    else:
        yield begun.result()


def as_json(address: str, contract: str, calls: list[Call]) -> str:
    """What client.js reads."""
    made = [_plain(call) for call in calls]
    return json.dumps({"address": address, "contract": contract, "calls": made})


def _plain(call: Call) -> dict[str, Any]:
    return vars(call) | {"during": None if call.during is None else _plain(call.during)}
