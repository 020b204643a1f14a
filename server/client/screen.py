"""An answer on the terminal as it comes.

Knows layout. Does not know calls or the conversation. Keeps true: what the model answers goes to
stdout and all else to stderr, so that a pipe gets the answer alone; a token's colour says who
proposed it, as in `fourstep generate`.
"""

from fourstep.v1 import inference_pb2 as pb

from server.cli_ink import DEPTH_STYLES, Ink

CALL = "yellow"


class Screen:
    """`out` and `aside` are the two streams. Messages are of one token each."""

    def __init__(self, out: Ink, aside: Ink) -> None:
        self._out, self._aside = out, aside
        self._clear()

    def _clear(self) -> None:
        self._depth = 0  # drafts accepted in a row
        self._call = -1  # the one that is being written
        self._prompt = ""
        self._thought = ""  # the end of the reasoning, as far as it is shown
        self._said = ""  # the end of what is shown of the answer

    def legend(self, draft_tokens: int) -> None:
        if self._out.coloured:
            self._aside.legend(DEPTH_STYLES[:draft_tokens])

    def note(self, text: str) -> None:
        self._aside.write(text + "\n", "dim")

    def begin(self, shown: str = "") -> None:
        """An answer; `shown` is the text that it goes on from."""
        self._clear()
        self._aside.write(shown, "dim")
        self._prompt = shown

    def show(self, message: pb.GenerateResponse, *, parsed: bool) -> None:
        """One message of the answer."""
        style = DEPTH_STYLES[self._depth] if message.accepted else None
        self._depth = self._depth + 1 if message.accepted else 0
        if not parsed:
            self._say(message.text, style)
            return
        self._think(message.reasoning)
        # The template's blank lines around reasoning are layout, and layout is ours.
        self._say(message.content if self._said else message.content.lstrip("\n"), style)
        for delta in message.tool_calls:
            if delta.index != self._call:
                self._call = delta.index
                self._say(f"{'' if self._at_start else chr(10)}{delta.name} ", CALL)
            self._say(delta.arguments, CALL)

    def end(self, closing: str = "") -> None:
        """The answer is over, one way or another; without a closing line others say which."""
        if self._said and not self._said.endswith("\n"):
            self._out.write("\n")
        aside = self._thought or self._prompt
        shared = self._out.terminal and self._aside.terminal
        if aside and not aside.endswith("\n") and not (self._said and shared):
            self._aside.write("\n")
        if not closing:
            return
        if self._aside.terminal:
            self._aside.write("\n")
        self.note(closing)

    @property
    def _at_start(self) -> bool:
        """Whether the answer stands at the beginning of a line."""
        return not self._said or self._said.endswith("\n")

    def _think(self, text: str) -> None:
        if text:
            self._aside.write(text, "dim")
            self._thought = text

    def _say(self, text: str, style: str | None) -> None:
        if not text:
            return
        if self._thought and not self._said and self._aside.terminal:
            self._aside.write("\n" if self._thought.endswith("\n") else "\n\n")
        self._out.write(text, style)
        self._said = text


def closing_line(end: pb.End, max_tokens: int) -> str:
    """What the answer took, in the words of `fourstep generate`; `max_tokens` 0: none were told."""
    usage = end.usage
    tokens, seconds = usage.completion_tokens, usage.total_seconds - usage.queue_seconds
    parts = [f"{tokens} token{'s' if tokens != 1 else ''} in {seconds:.2f} s"]
    if seconds > 0:
        parts.append(f"{tokens / seconds:.1f} tokens a second")
    if usage.steps:
        # The prompt's own token came without a step.
        parts.append(f"{(tokens - 1) / usage.steps:.2f} tokens a step")
    if usage.drafted_tokens:
        parts.append(f"{usage.accepted_tokens} of {usage.drafted_tokens} drafts accepted")
    parts.append(f"prompt of {usage.prompt_tokens}, {usage.cached_tokens} cached")
    return " | ".join([*parts, _reason(end, max_tokens)])


def _reason(end: pb.End, max_tokens: int) -> str:
    if end.reason == pb.FINISH_REASON_LENGTH:
        told = end.usage.completion_tokens == max_tokens
        return "--max-tokens reached" if told else "no room for more"
    if end.WhichOneof("matched") == "matched_stop":
        return "a --stop text came"
    return "the model ended its answer"
