"""Where an answer stops thinking, by token id.

Knows the markers of reasoning; does not know text. A `</think>` spelled with other tokens is text,
whatever it looks like. Keeps true: parsers and grammars take the end of thinking from here, so a
constraint begins exactly behind it even when the tokens on both sides come in one step.
Architecture section 7.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Markers:
    """The ids of `<think>` and `</think>`, and of `<tool_call>` where a call ends the thinking."""

    begin: int
    end: int
    tool_call: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, tools: bool) -> "Markers":
        """Raises TokenizerError where the tokenizer lacks a marker. `tools`: calls are expected, so
        one that is opened while thinking ends it, as if `</think>` had been forgotten."""
        return cls(
            begin=tokenizer.id_of("<think>"),
            end=tokenizer.id_of("</think>"),
            tool_call=tokenizer.id_of("<tool_call>") if tools else None,
        )

    def starts_thinking(self, prompt_ids: Sequence[int]) -> bool:
        """Whether an answer to this prompt begins inside the reasoning: its last marker opens."""
        for token in reversed(prompt_ids):
            if token in (self.begin, self.end):
                return token == self.begin
        return False

    def thinking_end(self, token_ids: Sequence[int]) -> int | None:
        """The index of the first token that is no longer reasoning, None while all of them are.

        `token_ids` begin inside the reasoning. `</think>` is the last token of the reasoning, so
        the index is the one behind it and may equal the length; a `<tool_call>` that ends the
        reasoning is itself the first token behind it.
        """
        for index, token in enumerate(token_ids):
            if token == self.end:
                return index + 1
            if token == self.tool_call:
                return index
        return None
