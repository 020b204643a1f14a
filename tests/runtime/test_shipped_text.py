"""The shipped tokenizer and template: special tokens, one BOS, streams equal to the whole text."""

from pathlib import Path

import pytest

from graphs.config_json import load_config
from runtime.chat import ChatTemplate, parse_chat
from runtime.tokenizer import Detokenizer, Tokenizer
from tests.runtime.test_tokenizer import SAMPLES
from tests.sources import ROOT

NANO = ROOT / "models" / "step5-nano"
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.json"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = load_config(NANO)
    return Tokenizer.open(NANO, vocab_size=config.vocab_size, bos_id=config.bos_id)


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("skip_special", [True, False])
def test_stream_equals_decode_for_every_cut(
    tokenizer: Tokenizer, text: str, skip_special: bool
) -> None:
    ids = tokenizer.encode(text)
    for end in range(len(ids) + 1):
        detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        pieces = [detokenizer.push(token) for token in ids[:end]] + [detokenizer.finish()]
        assert "".join(pieces) == tokenizer.decode(ids[:end], skip_special=skip_special)


def test_special_tokens_of_the_family(tokenizer: Tokenizer) -> None:
    config = load_config(NANO)
    assert tokenizer.bos_token == "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
    assert tokenizer.id_of("<|im_end|>") in config.stop_ids
    assert tokenizer.is_special(tokenizer.id_of("<|im_end|>"))
    for marker in ("<think>", "</think>", "<tool_call>", "</tool_call>"):
        assert not tokenizer.is_special(tokenizer.id_of(marker)), "the answer has to show it"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_render_with_one_bos(tokenizer: Tokenizer, path: Path) -> None:
    template = ChatTemplate.open(NANO, special_tokens={"bos_token": tokenizer.bos_token})
    text = template.render(parse_chat(path.read_text(encoding="utf-8")))
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_id
    assert ids.count(tokenizer.bos_id) == 1
    assert text.endswith("<|im_start|>assistant\n<think>\n")
    assert tokenizer.decode(ids, skip_special=False) == text
