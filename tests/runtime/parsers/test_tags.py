"""Tags are found however the text is cut, and text waits only while it may become one."""

import pytest

from runtime.parsers.tags import BLANKS, MOST_HELD, Tag, TagScanner

ALL = ["<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"]


def scan(text: str) -> tuple[list[str], str, int]:
    """(tags found, everything joined, most characters held), one character at a time."""
    scanner = TagScanner()
    tags, out, most = [], "", 0
    for end, char in enumerate(text, start=1):
        for piece in scanner.push(char):
            if isinstance(piece, Tag):
                tags.append(piece.kind)
                out += piece.text
            else:
                out += piece
        most = max(most, end - len(out))
    return tags, out + scanner.finish(), most


@pytest.mark.parametrize("tag", ALL)
def test_a_tag_is_found_and_nothing_is_lost(tag: str) -> None:
    text = f"a<{tag}<b{tag}{tag}"
    assert scan(text)[:2] == ([tag] * 3, text)


@pytest.mark.parametrize("tag", ALL[2:])
def test_blanks_inside_a_tag(tag: str) -> None:
    spaced = f"{tag[:-1]}{' ' * (BLANKS - 1)}\t{tag[-1]}"
    assert scan(spaced)[:2] == ([tag], spaced)
    too_many = f"{tag[:-1]}{' ' * (BLANKS + 1)}{tag[-1]}"
    assert scan(too_many) == ([], too_many, len(tag) - 1 + BLANKS)


@pytest.mark.parametrize(
    "text", ["<tool call>", "< function=", "<tool_call >", "<Function=", "<<>"]
)
def test_what_is_no_tag(text: str) -> None:
    assert scan(text)[:2] == ([], text)


def test_text_goes_on_as_soon_as_it_cannot_become_a_tag() -> None:
    scanner = TagScanner()
    assert list(scanner.push("if a <")) == ["if a "]
    assert list(scanner.push(" b</param")) == ["< b"]
    assert list(scanner.push("s>")) == ["</params>"]
    assert scanner.finish() == ""


def test_a_bounded_number_of_characters_is_held() -> None:
    text = "".join(f"{tag[:-1]}{' ' * 50}" for tag in ALL)
    assert scan(text)[2] <= MOST_HELD
