"""The tags of tool calls in a text that comes in pieces.

Knows how the six tags are spelled, blanks before `=` or `>` included; does not know what they mean
or where they may stand. Keeps true: pieces and tags, joined, are the text; how the text was cut
does not show; text is held back only while it may be the beginning of a tag, and at most
MOST_HELD characters of it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

BLANKS = 8  # tolerated inside a tag
STEMS = ("<function", "<parameter", "</function", "</parameter")
WHOLE = ("<tool_call>", "</tool_call>")
MOST_HELD = max(map(len, STEMS + WHOLE)) + BLANKS

_BLANK = rf"[ \t]{{0,{BLANKS}}}"
_TAG = re.compile(
    rf"</?tool_call>|<(?:function|parameter){_BLANK}=|</(?:function|parameter){_BLANK}>"
)


@dataclass(frozen=True)
class Tag:
    """`kind` is the tag without blanks, such as "<function="; `text` is what was written."""

    kind: str
    text: str


class TagScanner:
    """Cuts one text into plain pieces and tags."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> Iterator[str | Tag]:
        """The pieces and tags that are certain once `text` has come; to be read to the end."""
        text = self._held + text
        done = 0
        for match in _TAG.finditer(text):
            if match.start() > done:
                yield text[done : match.start()]
            yield Tag(re.sub(r"[ \t]", "", match[0]), match[0])
            done = match.end()
        # A tag has its only "<" in front, so no other place can be the beginning of one.
        last = text.rfind("<", done)
        certain = last if last >= 0 and _may_become_tag(text[last:]) else len(text)
        self._held = text[certain:]
        if certain > done:
            yield text[done:certain]

    def finish(self) -> str:
        """The beginning of a tag that never came."""
        held, self._held = self._held, ""
        return held


def _may_become_tag(tail: str) -> bool:
    stem = tail.rstrip(" \t")
    if stem == tail:
        return any(tag.startswith(tail) for tag in STEMS + WHOLE)
    return stem in STEMS and len(tail) - len(stem) <= BLANKS
