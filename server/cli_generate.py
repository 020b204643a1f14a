"""`fourstep generate`: one prompt or chat through a checkpoint, shown step by step.

Joins checkpoint, tokenizer, template and engine; does no model work and no formatting of its own.
Keeps true: whatever a user can get wrong is found while preparing, before anything is written.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from runtime.build import open_checkpoint
from runtime.chat import ChatTemplate, parse_chat
from runtime.engine import Engine, EngineError, Precision
from runtime.generate import check_request, generate
from runtime.request import SamplingParams, Step, summarise
from runtime.tokenizer import Tokenizer
from runtime.width import WidthPolicy
from server.cli_engine import EngineRequest, make_engine
from server.cli_output import JsonOutput, Output, TextOutput
from server.errors import fail, user_errors

STDIN = "-"
TURN, TURN_END = "<|im_start|>", "<|im_end|>"  # architecture 7.2


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The command line: `prompt` is text or "-", `chat` a file or "-"; exactly one is given."""

    checkpoint: Path
    prompt: str | None
    chat: str | None
    sampling: SamplingParams
    draft_tokens: int | None  # None: as many as pay
    precision: Precision
    compiler: str
    artifact: Path | None
    artifact_sha256: str | None
    json: bool


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a run needs, checked. `shown` is what the user wrote, without template and BOS."""

    engine: Engine
    policy: WidthPolicy
    tokenizer: Tokenizer
    prompt_ids: tuple[int, ...]
    shown: str
    sampling: SamplingParams


def run(options: GenerateOptions) -> None:
    """Generate and print. Raises typer.Exit: 2 for a user's mistake, 1 for a failure."""
    with user_errors():
        job = prepare(options)
        output = _output(options)
    output.start(job.shown)
    steps: list[Step] = []
    start = time.perf_counter()
    try:
        for step in generate(
            *(job.engine, job.prompt_ids, job.sampling),
            policy=job.policy,
            tokenizer=job.tokenizer,
        ):
            output.step(step, step.pieces)
            steps.append(step)
    except EngineError as error:
        raise fail(error, 1) from error
    output.end(summarise(len(job.prompt_ids), steps), time.perf_counter() - start)


def prepare(options: GenerateOptions) -> Job:
    """Open the checkpoint, encode the prompt and make an engine just large enough for the request.

    Raises ValueError or OSError with what the user has to change.
    """
    if (options.prompt is None) == (options.chat is None):
        raise ValueError("give one of --prompt TEXT and --chat FILE")
    # Plain decoding is asked for by --spec-tokens 0, and only then may MTP tensors be missing.
    checkpoint, weights = open_checkpoint(options.checkpoint, drafting=options.draft_tokens != 0)
    config = checkpoint.config
    tokenizer = Tokenizer.open(
        options.checkpoint, vocab_size=config.vocab_size, bos_id=config.bos_id
    )
    text, shown = _prompt_text(options, tokenizer)
    prompt_ids = tokenizer.encode(text)
    context = len(prompt_ids) + options.sampling.max_tokens
    if context > config.max_positions:
        raise ValueError(
            f"{len(prompt_ids)} prompt tokens and --max-tokens {options.sampling.max_tokens} "
            f"do not fit the model's {config.max_positions} positions"
        )
    engine, policy = make_engine(
        config,
        weights,
        EngineRequest(
            compiler=options.compiler,
            artifact=options.artifact,
            artifact_sha256=options.artifact_sha256,
            precision=options.precision,
            draft_tokens=options.draft_tokens,
            context=context,
        ),
    )
    check_request(engine, prompt_ids, options.sampling)
    return Job(
        engine=engine,
        policy=policy,
        tokenizer=tokenizer,
        prompt_ids=tuple(prompt_ids),
        shown=shown,
        sampling=options.sampling,
    )


def _prompt_text(options: GenerateOptions, tokenizer: Tokenizer) -> tuple[str, str]:
    """(text for the model, what to show of it)."""
    if options.prompt is not None:
        text = _read(STDIN) if options.prompt == STDIN else options.prompt
        return text, text
    assert options.chat is not None, "checked by prepare"
    chat = parse_chat(_read(options.chat))
    special_tokens = {"bos_token": tokenizer.bos_token}
    template = ChatTemplate.open(options.checkpoint, special_tokens=special_tokens)
    text = template.render(chat)
    # The last two turns as the model sees them: what was said, and how the answer is opened.
    *_, last, answer = ("", *text.split(TURN))
    return text, last.replace(TURN_END, "\n") + answer


def _read(source: str) -> str:
    """The text of a file, or of stdin for "-"."""
    data = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        name = "stdin" if source == STDIN else source
        raise ValueError(f"{name} is not UTF-8 text: {error.reason} at {error.start}") from error


def _output(options: GenerateOptions) -> Output:
    if options.json:
        return JsonOutput()
    return TextOutput(
        Console(soft_wrap=True),
        draft_tokens=3 if options.draft_tokens is None else options.draft_tokens,
    )
