"""Each option of `fourstep generate` does what the runtime does with it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from graphs.checkpoint import Checkpoint
from runtime.engine import Engine
from runtime.generate import generate
from runtime.request import SamplingParams, Step
from runtime.tokenizer import Tokenizer
from server.cli_generate_options import bias_of
from tests.server.test_cli_generate import PROMPT, call, lines
from tests.server.tiny_checkpoint import write_checkpoint

DRAWN: dict[str, Any] = {"temperature": 1.3, "seed": 5, "max_tokens": 16}
ARGUMENTS = ("--prompt", PROMPT, "--temperature", 1.3, "--seed", 5, "--max-tokens", 16)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("options") / "checkpoint")


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> tuple[Engine, Tokenizer]:
    opened = Checkpoint.open(checkpoint)
    tokenizer = Tokenizer.open(checkpoint, vocab_size=opened.config.vocab_size, bos_id=0)
    return Engine(opened.config, opened.load(), context=512), tokenizer


def expected(alone: tuple[Engine, Tokenizer], **changes: Any) -> list[Step]:
    engine, tokenizer = alone
    params = SamplingParams(**DRAWN | changes)
    return list(generate(engine, tokenizer.encode(PROMPT), params, tokenizer=tokenizer))


def ids(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


def run(checkpoint: Path, *options: object) -> tuple[list[int], str, dict[str, Any]]:
    """Tokens, text and the last object of one answer."""
    *steps, done = lines(call("generate", checkpoint, *ARGUMENTS, "--json", *options))
    tokens = [token for step in steps for token in step["token_ids"]]
    return tokens, "".join(step["text"] for step in steps), done


@pytest.fixture(scope="module")
def plain(alone: tuple[Engine, Tokenizer]) -> list[int]:
    """What comes without any option."""
    return ids(expected(alone))


OPTIONS: list[tuple[tuple[object, ...], dict[str, Any]]] = [
    (("--presence-penalty", 2), {"presence_penalty": 2.0}),
    (("--frequency-penalty", 2), {"frequency_penalty": 2.0}),
    (("--repetition-penalty", 4), {"repetition_penalty": 4.0}),
    (("--top-k", 2), {"top_k": 2}),
    (("--top-p", 0.3), {"top_p": 0.3}),
    (("--min-p", 0.5), {"min_p": 0.5}),
    (("--logit-bias", '{"97": 100}'), {"logit_bias": {97: 100.0}}),
]


@pytest.mark.parametrize(("options", "changes"), OPTIONS)
def test_what_is_drawn(
    checkpoint: Path,
    alone: tuple[Engine, Tokenizer],
    plain: list[int],
    options: tuple[object, ...],
    changes: dict[str, Any],
) -> None:
    tokens, _, _ = run(checkpoint, *options)
    assert tokens == ids(expected(alone, **changes))
    assert tokens != plain, "the option changes something"


def test_a_stop_text_ends_it(
    checkpoint: Path, alone: tuple[Engine, Tokenizer], plain: list[int]
) -> None:
    text = "".join(piece for step in expected(alone) for piece in step.pieces)
    stop = text[len(text) // 2 :][:2]
    _, told, done = run(checkpoint, "--stop", "never comes", "--stop", stop)
    assert told == text[: text.index(stop)]
    assert (done["finish_reason"], done["matched"]) == ("stop", stop)
    shown = call("generate", checkpoint, *ARGUMENTS, "--stop", stop).stdout
    assert shown.splitlines()[-1].endswith("a --stop text came")


def test_a_stop_token_ends_it_but_not_before_min_tokens(checkpoint: Path, plain: list[int]) -> None:
    token = plain[3]
    tokens, _, done = run(checkpoint, "--stop-token-id", token)
    assert tokens == plain[: plain.index(token) + 1]
    assert done["matched"] == token
    tokens, _, _ = run(checkpoint, "--stop-token-id", token, "--min-tokens", 10)
    assert len(tokens) >= 10
    assert token not in tokens[:10], "a stop token is not drawn before it may stop"


def test_the_models_own_end_can_be_ignored(checkpoint: Path) -> None:
    bias = ("--logit-bias", '{"1": 100}', "--max-tokens", 6)
    tokens, _, done = run(checkpoint, *bias)
    assert (tokens, done["finish_reason"]) == ([1], "stop")
    tokens, _, done = run(checkpoint, *bias, "--ignore-eos")
    assert (tokens, done["finish_reason"]) == ([1] * 6, "length")


def test_bad_words_do_not_come(
    checkpoint: Path, alone: tuple[Engine, Tokenizer], plain: list[int]
) -> None:
    words = [alone[1].decode([token]) for token in plain]
    bad = next(word for word in words if word.isascii() and word.isalnum())
    tokens, _, _ = run(checkpoint, "--bad-word", "xyz", "--bad-word", bad)
    assert tokens == ids(expected(alone, bad_words=("xyz", bad)))
    assert tokens != plain


def test_several_answers_come_one_after_the_other(
    checkpoint: Path, alone: tuple[Engine, Tokenizer]
) -> None:
    arguments = (*ARGUMENTS, "--max-tokens", 10, "-n", 3)
    told = lines(call("generate", checkpoint, *arguments, "--json"))
    assert [line["index"] for line in told] == sorted(line["index"] for line in told)
    texts = []
    for index in range(3):
        *steps, done = [line for line in told if line["index"] == index]
        assert done["done"]
        tokens = [token for step in steps for token in step["token_ids"]]
        assert tokens == ids(expected(alone, choice=index, max_tokens=10))
        texts.append("".join(step["text"] for step in steps))
    shown = call("generate", checkpoint, *arguments).stdout
    places = [shown.index(text) for text in texts]
    assert places == sorted(places)
    assert shown.index("answer 2 of 3") < places[1] < shown.index("answer 3 of 3") < places[2]


def test_logprobs_are_told(checkpoint: Path) -> None:
    *steps, _ = lines(call("generate", checkpoint, *ARGUMENTS, "--json", "--logprobs", 2))
    for step in steps:
        assert [told["token_id"] for told in step["logprobs"]] == step["token_ids"]
        for told in step["logprobs"]:
            first, second = told["top"]
            assert first["logprob"] >= second["logprob"]
            assert told["logprob"] <= first["logprob"] <= 0


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
SCHEMA |= {"additionalProperties": False}
GRAMMAR = 'start: "a" ("b" | "c")\n'


def matches(checkpoint: Path, pattern: str, *options: object) -> None:
    _, text, done = run(checkpoint, *options, "--max-tokens", 150)  # blanks are JSON
    assert re.fullmatch(pattern, text), text
    assert done["finish_reason"] == "stop"


def test_an_answer_of_a_formal_language(checkpoint: Path, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.ebnf"
    schema.write_text(json.dumps(SCHEMA))
    grammar.write_text(GRAMMAR)
    json_text = r'\s*\{\s*"a"\s*:\s*"[xy]"\s*\}\s*'
    matches(checkpoint, json_text, "--json-schema", schema)
    matches(checkpoint, json_text, "--json-schema", json.dumps(SCHEMA))
    matches(checkpoint, "a[bc]", "--grammar", grammar)
    matches(checkpoint, "[0-9]{3}", "--regex", "[0-9]{3}")
    matches(checkpoint, "yes|no", "--choice", "yes", "--choice", "no")
    _, text, _ = run(checkpoint, "--json-object", "--max-tokens", 5)
    assert text.lstrip().startswith("{")


def test_in_a_chat_the_language_is_for_what_follows_the_thinking(
    checkpoint: Path, tmp_path: Path
) -> None:
    chat = tmp_path / "chat.json"
    chat.write_text('[{"role": "user", "content": "hello"}]')
    from tests.runtime.tiny_grammars import END

    common = ("--chat", chat, "--json", "--max-tokens", 40, "--regex", "[0-9]{3}")
    *steps, done = lines(call("generate", checkpoint, *common))
    ids_of = [token for step in steps for token in step["token_ids"]]
    assert END not in ids_of, "the model thinks on"
    assert done["reasoning"] == "".join(step["text"] for step in steps)
    assert done["content"] is None
    # Made to stop thinking at once, and free to do so again and again.
    biased = ("--logit-bias", json.dumps({str(END): 100}))
    *_, done = lines(call("generate", checkpoint, *common, *biased))
    assert done["reasoning"] is None
    assert re.fullmatch("[0-9]{3}", done["content"])
    assert done["tool_calls"] == []


def test_in_a_chat_without_thinking_it_is_for_all_of_the_answer(tmp_path: Path) -> None:
    folder, chat = write_checkpoint(tmp_path / "c"), tmp_path / "chat.json"
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    chat.write_text('[{"role": "user", "content": "hello"}]')
    *_, done = lines(call("generate", folder, "--chat", chat, "--json", "--regex", "[0-9]{3}"))
    assert done["reasoning"] is None
    assert re.fullmatch("[0-9]{3}", done["content"])


BAD: list[tuple[list[object], str]] = [
    (["--logprobs", 1], "--logprobs is for --json"),
    (["--logprobs", 21, "--json"], "--logprobs 21: must be"),
    (["--logit-bias", "{"], "--logit-bias: expected JSON"),
    (["--logit-bias", "[1]"], "--logit-bias: expected JSON"),
    (["--logit-bias", '{"x": 1}'], "--logit-bias: expected JSON"),
    (["--logit-bias", '{"1": "x"}'], "--logit-bias: must be numbers"),
    (["--logit-bias", '{"9999": 1}'], "logit_bias: token 9999"),
    (["--stop-token-id", 9999], "stop_token_ids: token 9999"),
    (["--min-tokens", 300], "--min-tokens 300: must be"),
    (["-n", 0], "-n 0: must be"),
    (["--presence-penalty", 3], "--presence-penalty 3.0: must be"),
    (["--stop", ""], "--stop: must be texts"),
    (["--regex", "("], "constraint regex"),
    (["--json-schema", "no-such-file"], "no-such-file"),
    (["--json-schema", "{"], "constraint json_schema"),
    (["--grammar", "no-such-file"], "no-such-file"),
    (["--regex", "a", "--choice", "b"], "give one of --json-schema"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_what_is_wrong_is_said_before_anything_runs(
    checkpoint: Path, options: list[object], message: str
) -> None:
    result = call("generate", checkpoint, "--prompt", "a", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_bias_is_by_token_id() -> None:
    assert bias_of('{"11": -100, "3": 1.5}') == {11: -100, 3: 1.5}
    assert bias_of(None) == {}
