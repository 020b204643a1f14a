"""Coloured text on a terminal, plain text anywhere else.

Knows consoles and which colour means what. Does not know answers. Keeps true: text is never
altered except that a terminal gets no control characters.
"""

import os
from collections.abc import Sequence

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from server.errors import printable

WIDE = 10_000  # columns: more than any table has

# Foreground colours that read on dark and light terminals; sampled tokens keep the terminal's own.
DEPTH_STYLES = ("green", "cyan", "magenta")


def new_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """With NO_COLOR nothing of a style is left; rich alone would leave dim and bold."""
    return Console(
        stderr=stderr,
        soft_wrap=soft_wrap,
        highlight=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def tables_console() -> Console:
    """For stdout. Where it is no terminal nothing is cut or wrapped: others read it by lines."""
    made = new_console()
    if not made.is_terminal:
        made.width = WIDE
    return made


class Ink:
    """Writes to one console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @property
    def terminal(self) -> bool:
        return self._console.is_terminal

    @property
    def coloured(self) -> bool:
        return self._console.color_system is not None and not self._console.no_color

    def write(self, text: str, style: str | None = None) -> None:
        if self._console.is_terminal:
            text = printable(text)
        if text:
            # A segment reaches the file as it is; printed as text, rich would expand tabs.
            segment = Segment(text, Style.parse(style) if style else None)
            self._console.print(Segments([segment]), end="", crop=False)

    def legend(self, styles: Sequence[str]) -> None:
        """Who proposed what, where colours can tell and there is somebody to be told from."""
        if not self.coloured or not styles:
            return
        self.write("sampled by the backbone")
        for depth, style in enumerate(styles, start=1):
            self.write(" | ", "dim")
            self.write(f"drafted by MTP layer {depth}", style)
        self.write("\n\n")
