"""`fourstep generate` from the command line to the text, on a tiny random checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from graphs.checkpoint import Checkpoint
from runtime.engine import Engine, EngineError
from runtime.generate import generate
from runtime.request import SamplingParams, Step
from runtime.tokenizer import Tokenizer
from server.cli_commands import app
from tests.runtime.test_tokenizer import TOKENIZER
from tests.server.tiny_checkpoint import write_checkpoint

PROMPT = "def read(path):"
CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("cli") / "checkpoint")


def call(*arguments: object, stdin: str | bytes | None = None) -> Result:
    """On eager blocks: nothing here is about engines."""
    arguments = (*arguments, "--compiler", "eager")
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def expected(folder: Path, prompt: str, draft_tokens: int, params: SamplingParams) -> list[Step]:
    """The same request through the runtime alone."""
    opened = Checkpoint.open(folder)
    tokenizer = Tokenizer.open(folder, vocab_size=opened.config.vocab_size, bos_id=0)
    engine = Engine(opened.config, opened.load(), draft_tokens=draft_tokens)
    return list(generate(engine, tokenizer.encode(prompt), params))


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_json_lines_are_the_steps(checkpoint: Path, draft_tokens: int) -> None:
    arguments = (checkpoint, "--prompt", PROMPT, "--max-tokens", 20, "--temperature", 0.8)
    *steps, done = lines(
        call("generate", *arguments, "--seed", 7, "--spec-tokens", draft_tokens, "--json")
    )
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=7)
    wanted = expected(checkpoint, PROMPT, draft_tokens, params)
    assert [tuple(step["token_ids"]) for step in steps] == [step.token_ids for step in wanted]
    assert [tuple(step["drafted"]) for step in steps] == [step.drafted for step in wanted]
    assert [step["accepted"] for step in steps] == [step.accepted for step in wanted]
    assert set(steps[0]) == {"token_ids", "text", "drafted", "accepted"}
    assert done["done"] is True
    assert done["completion_tokens"] == sum(len(step["token_ids"]) for step in steps)
    assert done["prompt_tokens"] == len(TOKENIZER.encode(PROMPT))
    assert len(done["acceptance_by_position"]) == draft_tokens
    assert set(done) == {
        *("done", "finish_reason", "matched", "prompt_tokens", "cached_tokens"),
        *("completion_tokens", "steps", "tokens_per_step", "acceptance_by_position"),
        *("prefill_seconds", "decode_seconds", "seconds"),
    }


def test_text_of_the_steps_is_the_text_of_the_tokens(checkpoint: Path) -> None:
    """Also where tokens end inside characters, which random weights see to."""
    arguments = (checkpoint, "--prompt", PROMPT, "--max-tokens", 40, "--temperature", 1.5)
    for seed in range(2):
        *steps, done = lines(call("generate", *arguments, "--seed", seed, "--json"))
        ids = [token for step in steps for token in step["token_ids"]]
        assert "".join(step["text"] for step in steps) == TOKENIZER.decode(ids)
        assert done["finish_reason"] == ("stop" if len(ids) < 40 else "length")


def test_plain_output_is_prompt_text_and_closing_line(checkpoint: Path) -> None:
    arguments = (checkpoint, "--prompt", PROMPT, "--max-tokens", 12)
    *steps, done = lines(call("generate", *arguments, "--json"))
    text = "".join(step["text"] for step in steps)
    result = call("generate", *arguments)
    assert result.exit_code == 0
    assert result.stdout.startswith(PROMPT + text + "\n\n")
    closing = result.stdout.splitlines()[-1]
    assert closing.startswith(f"{done['completion_tokens']} tokens in ")
    assert f"{done['tokens_per_step']:.2f} tokens a step" in closing
    assert "\x1b" not in result.stdout


def test_prompt_from_stdin(checkpoint: Path) -> None:
    given = call("generate", checkpoint, "--prompt", PROMPT, "--max-tokens", 5, "--json")
    piped = call("generate", checkpoint, "--prompt", "-", "--max-tokens", 5, "--json", stdin=PROMPT)
    assert lines(given)[:-1] == lines(piped)[:-1]


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_chat(checkpoint: Path, tmp_path: Path, source: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": CHAT}))
    if source == "file":
        result = call("generate", checkpoint, "--chat", path, "--max-tokens", 5)
    else:
        result = call(
            "generate", checkpoint, "--chat", "-", "--max-tokens", 5, stdin=path.read_bytes()
        )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("user\nhello\n\nassistant\n<think>\n")


def test_a_missing_mtp_shard_runs_only_when_plain_decoding_is_asked_for(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", leave_out="model-extra-001.safetensors")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    weights = content["weight_map"]
    content["weight_map"] = {k: v for k, v in weights.items() if "extra-001" not in v}
    index.unlink()
    index.write_text(json.dumps(content))
    refused = call("generate", folder, "--prompt", "x", "--max-tokens", 3)
    assert refused.exit_code == 2
    assert "model.layers.10" in refused.stderr
    plain = call("generate", folder, "--prompt", "x", "--max-tokens", 3, "--spec-tokens", 0)
    assert plain.exit_code == 0, plain.output


BAD: list[tuple[list[object], str]] = [
    ([], "give one of --prompt"),
    (["--prompt", "a", "--chat", "b"], "give one of --prompt"),
    (["--chat", "no-such-file.json"], "no-such-file.json"),
    (["--prompt", "a", "--max-tokens", 0], "--max-tokens 0: must be"),
    (["--prompt", "a", "--max-tokens", 2**21], "do not fit the model's 1048576 positions"),
    (["--prompt", "a", "--temperature", -1], "--temperature -1.0: must be"),
    (["--prompt", "a", "--temperature", "nan"], "--temperature nan: must be"),
    (["--prompt", "a", "--top-p", 0], "--top-p 0.0: must be"),
    (["--prompt", "a", "--min-p", 2], "--min-p 2.0: must be"),
    (["--prompt", "a", "--top-k", -1], "--top-k -1: must be"),
    (["--prompt", "a", "--seed", 2**64], f"--seed {2**64}: must be"),
    (["--prompt", "\udcff bytes"], "not valid Unicode"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_user_errors_are_one_line_and_exit_code_2(
    checkpoint: Path, arguments: list[object], message: str
) -> None:
    result = call("generate", checkpoint, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_the_last_position_can_be_used(tmp_path: Path) -> None:
    folder, asked = write_checkpoint(tmp_path / "c", positions=64), ("--prompt", PROMPT, "--json")
    prompt = lines(call("generate", folder, *asked, "--max-tokens", 1))[-1]["prompt_tokens"]
    most = 64 - prompt
    last = lines(call("generate", folder, *asked, "--max-tokens", most, "--ignore-eos"))[-1]
    assert last["completion_tokens"] == most
    result = call("generate", folder, *asked, "--max-tokens", most + 1)
    assert result.exit_code == 2
    assert f"--max-tokens {most + 1} do not fit the model's 64 positions" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--spec-tokens", 4], ["--precision", "fp16"], ["--no-such-flag"], ["--max-tokens", "many"]],
)
def test_wrong_options_exit_with_2(checkpoint: Path, arguments: list[object]) -> None:
    result = call("generate", checkpoint, "--prompt", "a", *arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_files_that_are_no_text_are_named(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(b"[\xff]")
    result = call("generate", checkpoint, "--chat", path)
    assert result.exit_code == 2
    assert f"{path} is not UTF-8" in result.stderr
    result = call("generate", checkpoint, "--prompt", "-", stdin=b"\xff\xfe")
    assert result.exit_code == 2
    assert "stdin is not UTF-8" in result.stderr


@pytest.mark.parametrize(
    ("leave_out", "option"),
    [
        ("config.json", "--prompt"),
        ("tokenizer.json", "--prompt"),
        ("chat_template.jinja", "--chat"),
    ],
)
def test_missing_files_are_named(tmp_path: Path, leave_out: str, option: str) -> None:
    folder = write_checkpoint(tmp_path / "c", leave_out=leave_out)
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps(CHAT))
    result = call("generate", folder, option, chat)
    assert result.exit_code == 2
    assert leave_out in result.stderr


def test_a_failing_engine_is_exit_code_1_without_a_traceback(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_args: object, **_options: object) -> None:
        raise EngineError("the logits of a step are not numbers (NaN)")

    monkeypatch.setattr(Engine, "decode", failing)
    result = call("generate", checkpoint, "--prompt", "a")
    assert result.exit_code == 1
    assert result.stderr == "fourstep: error: the logits of a step are not numbers (NaN)\n"
