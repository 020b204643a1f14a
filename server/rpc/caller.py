"""Who is calling: the name that a token stands for, for the length of one call.

Knows a context variable. Does not know tokens. Keeps true: where a listener asks for no tokens,
everybody has the name ""; what a name calls its own, another name can neither reach nor guess.
"""

import re
from contextvars import ContextVar

_tenant: ContextVar[str] = ContextVar("tenant", default="")
_REQUEST_ID = re.compile(r"[!-~]{1,256}")


def tenant() -> str:
    return _tenant.get()


def set_tenant(name: str) -> None:
    """Of the call whose task this is."""
    _tenant.set(name)


def scoped(text: str) -> str:
    """Another text for each name: a name has no space in it."""
    return f"{tenant()} {text}"


def own_id(request_id: str) -> str:
    """A request's id among those of everybody. Raises ValueError."""
    if not _REQUEST_ID.fullmatch(request_id):
        raise ValueError("request_id: must be 1 to 256 printable ASCII characters and no space")
    return scoped(request_id)
