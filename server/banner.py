"""What `fourstep serve` says of itself at the start: model, machine, engines, listeners, limits.

Knows how to put it for a reader. Keeps true: how each listener is secured is said in words, and
where nothing is, that is.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from server.config import LimitsConfig, ListenerConfig
from server.rpc.listener import Listener
from server.rpc.served import Served

_NAMES = 10  # characters of what stands before a line


def banner(
    served: Served,
    listeners: Sequence[Listener],
    limits: LimitsConfig,
    *,
    operations: str | None,
) -> str:
    """`operations`: the address of metrics and probes."""
    lines = [*_lines(served, listeners, limits)]
    if operations is not None:
        lines.append(("operations", f"http://{operations}/metrics"))
    return "\n".join(f"{name:{_NAMES}} {text}" for name, text in lines)


def _lines(
    served: Served, listeners: Sequence[Listener], limits: LimitsConfig
) -> Iterator[tuple[str, str]]:
    who = served.identity
    slots = "1 slot" if served.slots == 1 else f"{served.slots} slots"
    yield (
        "model",
        f"{who.name}, {who.precision}, {slots} of {served.context} positions, up to "
        f"{served.draft_tokens} drafts a step",
    )
    yield "machine", f"{who.device} ({who.isa})"
    yield "engines", _engines(who.engines) + f" by {who.compiler}"
    if who.artifact is not None:
        yield "artifact", f"sha256 {who.artifact}"
    for one in listeners:
        yield "listening", f"{one.address}, {security(one.config)}: {', '.join(one.services)}"
    yield (
        "limits",
        f"requests of {limits.message_mib} MiB and {limits.deadline_s:g} s, "
        f"{limits.queued} answers waiting, {limits.streams} calls of a connection",
    )


def security(config: ListenerConfig) -> str:
    """What a listener asks of its callers."""
    if config.tls is None:
        channel = "this user alone" if config.address.startswith("unix:") else "plaintext"
    else:
        channel = "TLS" if config.tls.client_ca is None else "TLS with client certificates"
    return f"{channel}, {'no tokens' if config.tokens is None else 'tokens'}"


def _engines(engines: Sequence[tuple[str, bool]]) -> str:
    """As `9 decode and 2 prefill, 11 captured`."""
    kinds = Counter(name.split()[0] for name, _ in engines)
    captured = sum(captured for _, captured in engines)
    return f"{', '.join(f'{count} {kind}' for kind, count in kinds.items())}; {captured} captured"
