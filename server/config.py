"""What `fourstep serve` is told: model, listeners, limits, drain, operations.

Knows defaults, ranges and what of it does not go together. Does not know files or flags
(config_file.py), sockets or certificates. Keeps true: with nothing said, nothing listens beyond
this machine; what is reached from elsewhere is encrypted, or its operator has said that it need
not be; a token never crosses a network in clear.
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from server.options import NANO

Problem = tuple[str, str]  # a key and what is wrong with it; the key "" is the section itself
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^:\[\]\s]+):(?P<port>\d{1,5})")
MOST_PORT = 65535
EXPOSED = "`exposed`"  # as messages name that key: there is a flag for it
_LONGEST_SOCKET = 100  # bytes of a path that every system can bind


def ranged(default: Any, least: float, most: float | None = None) -> Any:
    """A field whose value, unless it is None, lies between these."""
    return field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """`spec_tokens` None: as many drafts as pay. `context`: positions of prompt and answer."""

    checkpoint: Path = NANO
    artifact: Path | None = None
    artifact_sha256: str | None = None
    compiler: Literal["inductor", "eager"] = "inductor"
    precision: Literal["bf16", "fp32"] = "bf16"
    slots: int = ranged(4, 1)
    context: int = ranged(4096, 2)
    spec_tokens: int | None = ranged(None, 0, 3)


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """PEM files. With `client_ca` a client needs a certificate that it has signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ListenerConfig:
    """`address`: HOST:PORT (port 0: any that is free) or unix:PATH. `tokens`: a file of who may
    call, of whom `operators` may take the worker out of service. `exposed`: plaintext may be
    reached from other machines."""

    address: str = "127.0.0.1:50051"
    protocol: Literal["fourstep", "vllm"] = "fourstep"
    tls: TlsConfig | None = None
    tokens: Path | None = None
    operators: tuple[str, ...] = ()
    exposed: bool = False
    reflection: bool = False

    def problems(self) -> Iterator[Problem]:
        if wrong := address_problem(self.address):
            yield "address", f"{self.address!r} {wrong}"
        elif self.tls is None and not is_local(self.address):
            if self.tokens is not None:
                yield "tokens", f"{self.address} is not encrypted and others could read tokens"
            if not self.exposed:
                yield "address", not_local(self.address)
        if self.operators and self.tokens is None:
            yield "operators", "nobody has a name without tokens"


@dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """`message_mib`, `metadata_kib`: of one call. `streams`: calls of one connection at a time;
    `calls`: of one listener. `queued`: answers that may wait. `tenant_requests`: open at a time
    for one name. `deadline_s`: no request runs longer."""

    message_mib: int = ranged(16, 1, 1024)
    metadata_kib: int = ranged(16, 4, 1024)
    connections: int = ranged(1024, 1)
    streams: int = ranged(1024, 1)
    calls: int = ranged(4096, 1)
    queued: int = ranged(256, 1)
    tenant_requests: int = ranged(256, 1)
    deadline_s: float = ranged(3600.0, 0.001)


@dataclass(frozen=True, kw_only=True)
class DrainConfig:
    """`grace_s`: how long requests are still taken, once told to stop, so that routers notice;
    `timeout_s`: how long running answers then have."""

    grace_s: float = ranged(2.0, 0)
    timeout_s: float = ranged(60.0, 0)


@dataclass(frozen=True, kw_only=True)
class OperationsConfig:
    """`address` of metrics and probes, None: none; `exposed` as of a listener. `otlp`: where traces
    go."""

    address: str | None = "127.0.0.1:9464"
    exposed: bool = False
    log_format: Literal["text", "json"] = "text"
    otlp: str | None = None

    def problems(self) -> Iterator[Problem]:
        if self.address is None:
            return
        if wrong := port_problem(self.address):
            yield "address", f"{self.address!r} {wrong}"
        elif not self.exposed and not is_local(self.address):
            yield "address", not_local(self.address, "127.0.0.1")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    model: ModelSection = ModelSection()
    listeners: tuple[ListenerConfig, ...] = (ListenerConfig(),)
    limits: LimitsConfig = LimitsConfig()
    drain: DrainConfig = DrainConfig()
    operations: OperationsConfig = OperationsConfig()

    def problems(self) -> Iterator[Problem]:
        if not self.listeners:
            yield "listeners", "at least one is needed"
        seen = {self.operations.address: "operations.address"}
        for i, listener in enumerate(self.listeners):
            key = f"listeners[{i}].address"
            other = seen.setdefault(listener.address, key)
            if other != key and not listener.address.endswith(":0"):
                yield key, f"{listener.address} is that of {other} too"


def address_problem(address: str, *, least: int = 0) -> str | None:
    """Why nobody can listen there, or be reached, by its looks alone; `least`: the lowest port."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if not path.startswith("/"):
            return "must be unix: and an absolute path"
        long = len(path.encode()) > _LONGEST_SOCKET
        return f"is longer than the {_LONGEST_SOCKET} bytes of a socket's path" if long else None
    wrong = port_problem(address, least=least)
    return wrong and f"{wrong}, or unix:PATH"


def port_problem(address: str, *, least: int = 0) -> str | None:
    """Why it is no host and port."""
    match = None if address.startswith("unix:") else _ADDRESS.fullmatch(address)
    if match is not None and least <= int(match["port"]) <= MOST_PORT:
        return None
    return f"must be HOST:PORT with a port from {least} to {MOST_PORT}"


def host_of(address: str) -> str:
    return address.rpartition(":")[0]


def is_local(address: str) -> bool:
    """Whether only this machine can reach an address."""
    host = host_of(address)
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def not_local(address: str, instead: str = "TLS, 127.0.0.1 or a unix: socket") -> str:
    return (
        f"{address} can be reached from other machines, and nothing is encrypted: use {instead}, "
        f"or say {EXPOSED} where the network is trusted"
    )
