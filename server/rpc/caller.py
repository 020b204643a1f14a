"""Who is calling: the name that a token stands for, for the length of one call.

Knows a context variable. Does not know tokens. Keeps true: where a listener asks for no tokens,
everybody has the name ""; what a name calls its own, another name can neither reach nor guess.
"""

from contextvars import ContextVar

_tenant: ContextVar[str] = ContextVar("tenant", default="")
MAX_ID_CHARS = 256


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
    if not 1 <= len(request_id) <= MAX_ID_CHARS:
        raise ValueError(f"request_id: must be 1 to {MAX_ID_CHARS} characters")
    return scoped(request_id)
