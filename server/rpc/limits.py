"""LimitsConfig as grpc takes it, and how long a silent connection lives.

Knows the names of channel arguments, and what grpc does not keep of them. Keeps true: a client may
ping a silent call as often as it likes, for ever, since long prompts are silent for long; a client
that vanished without a word is found within a minute and a half; no call holds more metadata than
it may.
"""

import grpc
from fourstep.v1 import errors_pb2

from server.config import LimitsConfig
from server.rpc.handlers import Continuation, Handler, refusing

_PING_AFTER_S, _PING_ANSWER_S = 60, 20
_HANDSHAKE_S = 20  # a connection that has not shaken hands by then is closed
_ENTRY = 32  # bytes that HTTP/2 counts for each entry beside its name and value


def options(limits: LimitsConfig) -> list[tuple[str, int]]:
    """The channel arguments of one server."""
    return [
        ("grpc.max_receive_message_length", limits.message_mib * 2**20),
        ("grpc.max_concurrent_streams", limits.streams),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_metadata_size", limits.metadata_kib * 2**10),
        ("grpc.absolute_max_metadata_size", limits.metadata_kib * 2**10),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_S * 1000),
        ("grpc.http2.settings_timeout", _HANDSHAKE_S * 1000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_time_ms", _PING_AFTER_S * 1000),
        ("grpc.keepalive_timeout_ms", _PING_ANSWER_S * 1000),
        # Two listeners of one address are a mistake, not a way to share it.
        ("grpc.so_reuseport", 0),
    ]


class Metadata(grpc.aio.ServerInterceptor):
    """Refuses calls with too much of it: grpc does so itself, but takes 16 MiB from a client that
    does not acknowledge the server's settings."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._most = limits.metadata_kib * 2**10

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        entries = handler_call_details.invocation_metadata or ()
        if sum(len(key) + len(value) + _ENTRY for key, value in entries) > self._most:
            details = f"more than {self._most} bytes of metadata"
            return refusing(
                grpc.StatusCode.RESOURCE_EXHAUSTED, details, errors_pb2.ERROR_REASON_TOO_LARGE
            )
        return await continuation(handler_call_details)
