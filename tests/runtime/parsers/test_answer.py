"""An answer beside its neighbours: prompts, special tokens, stop strings, counts, broken text."""

import itertools

import pytest
import tokenizers

from runtime.parsers.answer import AnswerParser
from runtime.parsers.reasoning import Markers
from runtime.request import SamplingParams
from runtime.stop import Scanner
from runtime.tokenizer import Tokenizer, TokenizerError
from tests.runtime.parsers.recorded import PARIS, TOOLS
from tests.runtime.parsers.replay import TOKENIZER, encode, joined, make, stream
from tests.runtime.tiny_tokenizer import VOCAB_SIZE, tiny_core

END = TOKENIZER.id_of("</think>")
MARKERS = Markers.of(TOKENIZER, tools=True)


@pytest.mark.parametrize(
    ("prompt", "thinking"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>a</think>b<think>", True),
        ("<think>\n</think>\n", False),
        ("<think>\n</thin", True),
        ("once upon a time", False),
    ],
)
def test_thinking_starts_in_the_prompt(prompt: str, thinking: bool) -> None:
    ids = TOKENIZER.encode(prompt)
    assert MARKERS.starts_thinking(ids) == thinking
    answer = make(prompt_ids=ids).whole(encode("x"))
    assert (answer.reasoning, answer.content) == (("x", None) if thinking else (None, "x"))


def test_an_answer_may_begin_to_think_by_itself() -> None:
    answer = make(prompt_ids=()).whole(encode("<think>a<think></think>b<think>c"))
    assert (answer.reasoning, answer.content) == ("a<think>", "b<think>c")


@pytest.mark.parametrize(
    ("text", "behind"),
    [
        ("a</think>b</think>", "b</think>"),
        ("</think>", ""),
        ("a<tool_call>b", "<tool_call>b"),
        ("<tool_call></think>", "<tool_call></think>"),
        ("a</think><tool_call>", "<tool_call>"),
    ],
)
def test_thinking_ends_exactly_behind_its_marker(text: str, behind: str) -> None:
    ids = encode(text)
    end = MARKERS.thinking_end(ids)
    assert end is not None
    assert TOKENIZER.decode(ids[end:]) == behind


def test_thinking_goes_on() -> None:
    assert MARKERS.thinking_end(encode("a < b <think> </thin")) is None
    assert MARKERS.thinking_end([]) is None
    assert Markers.of(TOKENIZER, tools=False).thinking_end(encode("<tool_call>")) is None


def test_a_marker_spelled_with_other_tokens_is_text() -> None:
    ids = [*encode("a</"), *encode("think>b")]
    assert END not in ids
    assert make().whole(ids).reasoning == "a</think>b"


def test_a_call_spelled_with_other_tokens_is_a_call() -> None:
    ids = [END, *encode("<tool_"), *encode("call><function=now>")]
    assert [call.name for call in make().whole(ids).tool_calls] == ["now"]


def test_reasoning_left_as_it_is() -> None:
    answer = make(reasoning=False).whole(encode(f"<think>a</think>{PARIS}"))
    assert answer.content == "<think>a</think>"
    assert len(answer.tool_calls) == 1
    assert answer.reasoning_tokens == 0


@pytest.mark.parametrize(
    "text", ["<think>a b\n</think>c", f"a b\n{PARIS}", "a b\n<|im_end|>", "a b\n"]
)
def test_reasoning_tokens_are_counted_without_markers(text: str) -> None:
    count = len(encode("a b\n"))
    ids = encode(text)
    assert make().whole(ids).reasoning_tokens == count
    counts = [delta.reasoning_tokens for delta in stream(make(), ids, itertools.repeat(1))]
    assert counts == sorted(counts)
    assert all(seen <= done for done, seen in enumerate(counts, start=1))


@pytest.mark.parametrize("marker", ["</think>", "<tool_call>"])
def test_an_incomplete_character_belongs_to_the_part_that_it_is_in(marker: str) -> None:
    half = encode("\U0001f600")[:2]
    ids = [*half, TOKENIZER.id_of(marker), *half]
    answer = joined(stream(make(), ids, itertools.repeat(1)))
    assert answer.reasoning == "\ufffd"
    assert answer.content == ("\ufffd" if marker == "</think>" else None)
    assert joined(stream(make(), [END, *half], itertools.repeat(1))).content == "\ufffd"


def test_special_tokens_are_shown_on_demand() -> None:
    ids = encode("a</think>b<|im_end|>")
    assert make().whole(ids).content == "b"
    assert make(skip_special=False).whole(ids).content == "b<|im_end|>"


def test_markers_that_a_file_calls_special() -> None:
    core = tiny_core()
    core.add_special_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    tokenizer = Tokenizer(core, vocab_size=VOCAB_SIZE, bos_id=0)
    prompt, *ids = tokenizer.encode(f"<think>a</think>{PARIS}b")[1:]
    answer = AnswerParser(tokenizer, request_id="r", prompt_ids=[prompt], tools=TOOLS).whole(ids)
    assert [call.name for call in answer.tool_calls] == ["weather"]
    assert answer.content == "b"


def test_a_tokenizer_without_markers() -> None:
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0}, merges=[]))
    core.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = Tokenizer(core, vocab_size=1, bos_id=0)
    with pytest.raises(TokenizerError, match="<think>"):
        AnswerParser(tokenizer, request_id="r")
    assert AnswerParser(tokenizer, request_id="r", reasoning=False).whole([0]).content == "a"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
@pytest.mark.parametrize(
    ("stop", "reasoning", "content", "names"),
    [
        ("XYZ", "abc>", "\ndef\u4f60g!", ["weather"]),
        ("ef\u4f60", "abc>", "\nd", []),
        ("bc", "a", "", []),
        ("</think>", "abc>", "", []),
        (">\nde", "abc></think", "", []),
        (">\n\n", "abc>", "\ndef\u4f60g!", ["weather"]),
        ("<tool", "abc>", "\ndef\u4f60g", []),
    ],
)
def test_stop_strings(stop: str, reasoning: str, content: str, names: list[str], size: int) -> None:
    """The text is cut where the request's own text is; held-back markers keep their place."""
    ids = encode(f"abc></think>\ndef\u4f60g{PARIS}!<|im_end|>")
    params = SamplingParams(stop=(stop,))
    scanner = Scanner(params, eos_ids=[TOKENIZER.id_of("<|im_end|>")], tokenizer=TOKENIZER)
    parser, deltas = make(), []
    for start in range(0, len(ids), size):
        scanned = scanner.push(ids[start : start + size])
        deltas.append(parser.push(scanned.token_ids, "".join(scanned.pieces)))
        if scanned.finish:
            break
    answer = joined([*deltas, parser.finish()])
    assert (answer.reasoning or "", answer.content or "") == (reasoning, content)
    assert [call.name for call in answer.tool_calls] == names


def test_ids_of_calls_are_the_request_and_the_index() -> None:
    answer = make().whole(encode(f"</think>{PARIS}{PARIS}"))
    assert [call.id for call in answer.tool_calls] == ["call_r_0", "call_r_1"]
