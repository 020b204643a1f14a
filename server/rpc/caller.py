"""Who is calling: the name that a token stands for, for the length of one call.

Knows a context variable. Does not know tokens. Keeps true: where a listener asks for no tokens,
everybody has the name "".
"""

from contextvars import ContextVar

_tenant: ContextVar[str] = ContextVar("tenant", default="")


def tenant() -> str:
    return _tenant.get()


def set_tenant(name: str) -> None:
    """Of the call whose task this is."""
    _tenant.set(name)
