"""Text to token ids and back, from a checkpoint's tokenizer.json alone.

Knows the byte-level BPE of the Step family and its special tokens by name; does not know chat
turns (chat.py), models or requests. Reads tokenizer.json directly, since `tokenizer_class` in the
family's other files names a wrong class (architecture 7.1). Keeps true: an encoded prompt starts
with BOS exactly once, and a Detokenizer's pieces, joined, equal `decode` of all its tokens. Nothing
is ever put between tokens, special or not, so requests' `spaces_between_special_tokens` means
nothing here.
"""

import codecs
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers.decoders import ByteLevel

# An answer's structure, which its parsers read: text even where a file marks the tokens special.
MARKUP = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>"})


class TokenizerError(ValueError):
    """tokenizer.json cannot be used with this checkpoint; the message names file and token."""


def byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level BPE token stands for.

    Printable Latin-1 characters stand for themselves. The other bytes, in order, are written as the
    characters from U+0100 on, so that no token holds a blank or a control character.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + rank): byte for rank, byte in enumerate(others)
    }


class Tokenizer:
    """The tokenizer of one checkpoint. Thread-safe after construction, as the library is."""

    def __init__(self, core: tokenizers.Tokenizer, *, vocab_size: int, bos_id: int) -> None:
        if not isinstance(core.decoder, ByteLevel):
            kind = type(core.decoder).__name__
            raise TokenizerError(f"tokenizer.json: decoder {kind} is not supported, only ByteLevel")
        top_token, top_id = max(core.get_vocab().items(), key=lambda item: item[1])
        if top_id >= vocab_size:
            raise TokenizerError(
                f"tokenizer.json: token {top_token!r} has id {top_id}, "
                f"but the model's vocab_size is {vocab_size}"
            )
        bos = core.id_to_token(bos_id)
        if bos is None:
            raise TokenizerError(f"tokenizer.json: no token has the id {bos_id} of bos_token_id")
        # A file may carry the settings of the job that wrote it; a prompt is never cut or padded.
        core.no_truncation()
        core.no_padding()
        self._core = core
        self._alphabet = byte_alphabet()
        self._bytes_of: dict[int, bytes] = {}
        self._added = core.get_added_tokens_decoder()
        self.vocab_size = vocab_size
        self.bos_id = bos_id
        self.bos_token = bos

    @classmethod
    def open(cls, folder: Path, *, vocab_size: int, bos_id: int) -> "Tokenizer":
        """Reads folder/tokenizer.json for a model with `vocab_size` ids and this BOS.

        Raises TokenizerError when the file is missing, unreadable or does not fit the model.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path}: no such file")
        try:
            core = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for whatever it cannot read
            raise TokenizerError(f"{path}: {error}") from error
        return cls(core, vocab_size=vocab_size, bos_id=bos_id)

    def id_of(self, token: str) -> int:
        """The id of one token written out, for special tokens by name. Raises TokenizerError."""
        token_id = self._core.token_to_id(token)
        if token_id is None:
            raise TokenizerError(f"tokenizer.json has no token {token!r}")
        return token_id

    def encode(self, text: str) -> list[int]:
        """Ids of a whole prompt, BOS first.

        A rendered chat template has written BOS itself and a plain prompt has not, so BOS is put in
        front only where it is missing. Special tokens spelled out in the text become their ids.
        Raises TokenizerError for lone surrogates, as which Python holds bytes that are no text.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(f"not valid Unicode at character {error.start}") from error
        # add_special_tokens=False: whether a BOS is added must not depend on a post-processor.
        ids = self._core.encode(text, add_special_tokens=False).ids
        return ids if ids[:1] == [self.bos_id] else [self.bos_id, *ids]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of whole tokens; bytes that are no UTF-8 become U+FFFD, padding ids nothing."""
        kept = [token for token in ids if not (skip_special and self.is_special(token))]
        return self._core.decode(kept, skip_special_tokens=False)

    def is_special(self, token_id: int) -> bool:
        """Whether tokenizer.json marks the token as special, so that it is not part of the text.

        MARKUP never is.
        """
        added = self._added.get(token_id)
        return added is not None and added.special and added.content not in MARKUP

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text, special or not."""
        known = self._bytes_of.get(token_id)
        if known is None:
            known = self._bytes_of[token_id] = self._spell(self._core.id_to_token(token_id) or "")
        return known

    def _spell(self, token: str) -> bytes:
        # An added token holds plain text; if one of its characters is outside the alphabet, all of
        # it is taken literally. This is the library's rule, which decode() follows.
        if all(char in self._alphabet for char in token):
            return bytes(self._alphabet[char] for char in token)
        return token.encode()


class Detokenizer:
    """Turns one stream of tokens into text as it comes, at constant cost a token.

    A token may end inside a character; its bytes are held until the character is whole, so every
    piece is valid text. `finish` gives what is still held as U+FFFD, as decode() would.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes, often none."""
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.bytes_of(token_id))

    def finish(self) -> str:
        """The text of an incomplete last character. A token after this starts anew."""
        return self._decoder.decode(b"", final=True)
