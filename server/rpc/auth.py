"""Who may call a listener that asks for tokens, and what only its operators may.

Knows the tokens' file and metadata. Does not know requests. Keeps true: a call without a good token
is refused before its message is read; how long a comparison takes says nothing of the tokens, which
are not kept themselves; health is told to everybody.
"""

import functools
import hashlib
import hmac
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any

import grpc

from server.rpc.caller import set_tenant
from server.rpc.handlers import Continuation, Handler, refusing
from server.rpc.reload import Reloading

_HEALTH = ("/grpc.health.v1.Health/", "/vllm.grpc.engine.VllmEngine/HealthCheck")
_OPERATORS_ONLY = {
    "/fourstep.v1.Control/Drain",
    "/vllm.grpc.engine.VllmEngine/FlushCache",
    "/vllm.grpc.engine.VllmEngine/StartProfile",
    "/vllm.grpc.engine.VllmEngine/StopProfile",
}
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")
Known = tuple[tuple[str, bytes], ...]  # names and their tokens' digests


class TokensError(ValueError):
    """A file of tokens that cannot be used."""


def read_tokens(path: Path) -> Known:
    """Lines of a name and a token; a name may have several. Raises TokensError, OSError."""
    if wrong := _mode_problem(path):
        raise TokensError(wrong)
    return _parsed(path)


def tokens_problems(path: Path, operators: Collection[str]) -> list[str]:
    """All that such a file has wrong for these operators. Raises OSError."""
    wrong = _mode_problem(path)
    problems = [] if wrong is None else [wrong]
    try:
        known = _parsed(path)
    except ValueError as error:
        return [*problems, str(error)]
    if strangers := set(operators) - {name for name, _ in known}:
        problems.append(f"{path}: has no token of operators {sorted(strangers)}")
    return problems


def _mode_problem(path: Path) -> str | None:
    if path.stat().st_mode & stat.S_IRWXO:
        return f"{path}: other users can read or write it: chmod o= {path}"
    return None


def _parsed(path: Path) -> Known:
    found: dict[bytes, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match line.split():
            case []:
                continue
            case [first, *_] if first.startswith("#"):
                continue
            case [name, token] if _NAME.fullmatch(name) and _TOKEN.fullmatch(token):
                if found.setdefault(_digest(token), name) != name:
                    raise TokensError(f"{path}, line {number}: another name has that token")
            case _:
                raise TokensError(
                    f"{path}, line {number}: must be a name (letters, digits, _ . -) and a token "
                    "of at least 16 characters (letters, digits, . _ ~ + / -)"
                )
    if not found:
        raise TokensError(f"{path}: has no token")
    return tuple((name, digest) for digest, name in found.items())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Auth(grpc.aio.ServerInterceptor):
    """Raises TokensError and OSError when it is made."""

    def __init__(self, tokens: Path, operators: Collection[str]) -> None:
        if wrong := tokens_problems(tokens, operators):
            raise TokensError("; ".join(wrong))
        self._operators = frozenset(operators)
        self._known = Reloading([tokens], functools.partial(read_tokens, tokens))

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        method = handler_call_details.method
        if method.startswith(_HEALTH):
            return await continuation(handler_call_details)
        name = self._name(handler_call_details.invocation_metadata)
        if name is None:
            return refusing(grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is needed")
        set_tenant(name)  # whose refusal is told in the log, too
        if method in _OPERATORS_ONLY and name not in self._operators:
            return refusing(grpc.StatusCode.PERMISSION_DENIED, "that is for operators")
        return await continuation(handler_call_details)

    def _name(self, metadata: Any) -> str | None:
        """Whose token it is; all are compared, whether one has been found or not."""
        values = [value for key, value in metadata or () if key == "authorization"]
        if len(values) != 1:
            return None
        scheme, _, token = values[0].partition(" ")
        if scheme.lower() != "bearer":
            return None
        self._known.refresh()
        given, found = _digest(token.strip()), None
        for name, digest in self._known.value:
            if hmac.compare_digest(given, digest):
                found = name
        return found
