"""How a client reaches a worker: its address, and what it shows to be let in.

Knows files and channels. Does not know calls. Keeps true: what is wrong with a file is said before
the first connection, by name; a token leaves this machine encrypted or not at all.
"""

from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from server.config import address_problem, is_local
from server.errors import EXIT_USER_ERROR, ProblemsError, named, printable

Metadata = tuple[tuple[str, str], ...]
# Answers with many logprobs outgrow grpc's 4 MiB. A silent stream is pinged, so that a worker that
# is gone is noticed; workers allow a ping every ten seconds.
_OPTIONS = (("grpc.max_receive_message_length", 64 * 2**20), ("grpc.keepalive_time_ms", 30_000))

# What gRPC says where somebody answers and no connection comes of it.
_REFUSALS = {
    "CERTIFICATE_VERIFY_FAILED": (
        "The worker's certificate is not trusted: --ca must hold who has signed it"
    ),
    "Hostname Verification": (
        "The worker's certificate is for another name: --address must be one that it holds"
    ),
    "WRONG_VERSION_NUMBER": "The worker has no TLS: leave out --ca",
    "Socket closed": (
        "Whoever answers there ends the connection: a worker with TLS needs --ca (and --cert with "
        "--key, where it asks for a client's certificate)"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """`address`: HOST:PORT or unix:PATH. `ca` turns encryption on: who the worker's certificate
    must be signed by. `cert` and `key` are this client's own, `token` a file that holds one."""

    address: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: Path | None = None

    def __post_init__(self) -> None:
        wrong = []
        looks = address_problem(self.address, least=1)
        if looks is not None:
            wrong.append(f"--address: {self.address!r} {looks}")
        if (self.cert is None) != (self.key is None):
            wrong.append("--cert and --key go together")
        if self.cert is not None and self.ca is None:
            wrong.append("--cert needs --ca: a certificate is shown on encrypted connections")
        if self.token is not None and self.ca is None and not looks and not is_local(self.address):
            wrong.append(f"--token-file needs --ca: others could read the token to {self.address}")
        if wrong:
            raise ProblemsError(wrong)

    def open(self) -> "Connection":
        """Reads the files. Raises ValueError; connects with the first call."""
        return Connection(
            address=self.address,
            credentials=None
            if self.ca is None
            else grpc.ssl_channel_credentials(
                root_certificates=_pem("--ca", self.ca, "CERTIFICATE"),
                certificate_chain=self.cert and _pem("--cert", self.cert, "CERTIFICATE"),
                private_key=self.key and _pem("--key", self.key, "PRIVATE KEY"),
            ),
            metadata=() if self.token is None else (("authorization", _bearer(self.token)),),
        )


@dataclass(frozen=True, kw_only=True)
class Connection:
    """`metadata` goes with every call."""

    address: str
    credentials: grpc.ChannelCredentials | None
    metadata: Metadata

    def channel(self) -> grpc.Channel:
        if self.credentials is None:
            return grpc.insecure_channel(self.address, _OPTIONS)
        return grpc.secure_channel(self.address, self.credentials, _OPTIONS)

    def async_channel(self) -> grpc.aio.Channel:
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.address, _OPTIONS)
        return grpc.aio.secure_channel(self.address, self.credentials, _OPTIONS)


def _pem(option: str, path: Path, kind: str) -> bytes:
    with named(option):
        data = path.read_bytes()
    if f"{kind}-----".encode() not in data:
        raise ValueError(f"{path}: holds no {kind.lower()} in PEM form")
    return data


def _bearer(path: Path) -> str:
    with named("--token-file"):
        words = path.read_text(encoding="utf-8").split()
    if len(words) != 1 or not words[0].isascii():
        raise ValueError(f"{path}: must hold one token and nothing else")
    return f"Bearer {words[0]}"


def said(error: grpc.RpcError, *, timeout: float | None = None) -> str:
    """The status of a call in one line, which cannot drive a terminal; `timeout` is the --timeout
    that it had."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError)
    code = error.code()
    name = "UNKNOWN" if code is None else code.name
    details = error.details() or "no details"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and timeout is not None:
        details = f"the {timeout:g} s of --timeout are over"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        details += "; a token is shown with --token-file"
    return printable(f"{name}: {' '.join(details.split())}")


def first_said(error: grpc.RpcError, address: str, *, timeout: float | None = None) -> str:
    """Of a first call, with what to do where nobody has answered it."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError)
    status, details = said(error, timeout=timeout), error.details() or ""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return status
    for part, advice in _REFUSALS.items():
        if part in details:
            return f"{status}. {advice}"
    return (
        f"{status}. No worker answers at {address}: start one with `fourstep serve`, or name "
        "another with --address (and --ca, where it has TLS)"
    )


def exit_code(error: grpc.RpcError) -> int:
    """2 where the user has to ask for something else."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError)
    return EXIT_USER_ERROR if error.code() is grpc.StatusCode.INVALID_ARGUMENT else 1
