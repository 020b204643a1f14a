"""Where a run of committed tokens ends: in order, the first of stop token and length wins.

Only verified tokens come here: a draft that proposes a stop token and is rejected never finishes a
request. Keeps true: nothing after the end is emitted or counted; a stop token at the cap is a stop.
"""

from collections.abc import Collection, Sequence

from runtime.request import FinishReason


def scan(
    tokens: Sequence[int], room: int, stop_ids: Collection[int]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """(tokens to emit, reason or None). `room` is how many more tokens may be emitted, at least 1.

    The stop token itself is emitted; text hides it, counts include it.
    """
    for index, token in enumerate(tokens[:room]):
        if token in stop_ids:
            return tuple(tokens[: index + 1]), "stop"
    if len(tokens) >= room:
        return tuple(tokens[:room]), "length"
    return tuple(tokens), None
