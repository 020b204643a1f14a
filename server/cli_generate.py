"""`fourstep generate`: one prompt or chat through a checkpoint, shown step by step.

Joins checkpoint, tokenizer, template and engine; does no model work and no formatting of its own.
Keeps true: whatever a user can get wrong is found while preparing, before anything is written.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.answer import Output, Request
from runtime.build import open_checkpoint
from runtime.engine import EngineError, Precision
from runtime.numbers import summarise
from runtime.parsers.answer import AnswerParser
from runtime.parsers.reasoning import Markers
from runtime.request import SamplingParams, Step
from runtime.scheduler import Scheduler
from runtime.tokenizer import Tokenizer
from server.cli_engine import EngineRequest, find_artifact, make_scheduler
from server.cli_ink import new_console
from server.cli_output import Done, JsonPrinter, Printer, TextPrinter
from server.errors import EXIT_USER_ERROR, fail, user_errors
from server.files import STDIN, read_text

TURN, TURN_END = "<|im_start|>", "<|im_end|>"  # architecture 7.2
ID = "generate"  # of the one request


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
class Prompt:
    """`shown` is what the user wrote, without template and BOS; `tools` are a chat's."""

    ids: tuple[int, ...]
    shown: str
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(kw_only=True)
class Job:
    """All that a run needs, checked and queued; the steps of the answer that is running."""

    scheduler: Scheduler
    tokenizer: Tokenizer
    prompt: Prompt
    parses: bool  # a chat's answers, for --json
    answers: int
    steps: list[Step] = field(default_factory=list)


def run(options: GenerateOptions) -> None:
    """Generate and print. Raises typer.Exit: 2 for a user's mistake, 1 for a failure."""
    with user_errors():
        job = prepare(options)
        printer = _printer(options)
    printer.start(job.prompt.shown)
    while not job.scheduler.idle:
        for output in job.scheduler.step():
            show(output, job, printer)


def show(output: Output, job: Job, printer: Printer) -> None:
    """One slot: an answer has ended before the next one begins."""
    end = output.end
    if end is not None and end.message:
        raise fail(EngineError(end.message), EXIT_USER_ERROR if end.reason == "invalid" else 1)
    assert output.step is not None, "nothing cancels here"
    if not job.steps:
        printer.begin(output.index, job.answers)
    printer.step(output)
    job.steps.append(output.step)
    if end is not None:
        printer.end(_done(output, job))
        job.steps = []


def prepare(options: GenerateOptions) -> Job:
    """Open the checkpoint, encode the prompt, make an engine just large enough, queue the request.

    Raises ValueError or OSError with what the user has to change.
    """
    # Plain decoding is asked for by --spec-tokens 0, and only then may MTP tensors be missing.
    checkpoint, weights = open_checkpoint(options.checkpoint, drafting=options.draft_tokens != 0)
    config = checkpoint.config
    tokenizer = Tokenizer.open(
        options.checkpoint, vocab_size=config.vocab_size, bos_id=config.bos_id
    )
    prompt = _prompt(options, tokenizer)
    context = len(prompt.ids) + options.sampling.max_tokens
    if context > config.max_positions:
        raise ValueError(
            f"{len(prompt.ids)} prompt tokens and --max-tokens {options.sampling.max_tokens} "
            f"do not fit the model's {config.max_positions} positions"
        )
    if parses := options.json and options.chat is not None:
        Markers.of(tokenizer, tools=bool(prompt.tools))  # there are none: better now than later
    sampling, grammars = _constrained(options, tokenizer, prompt), None
    if sampling.constraint is not None:
        from runtime.grammar import Grammars

        grammars = Grammars(tokenizer, eos_ids=config.stop_ids)
    asked = EngineRequest(
        compiler=options.compiler,
        artifact=options.artifact,
        artifact_sha256=options.artifact_sha256,
        precision=options.precision,
        draft_tokens=options.draft_tokens,
        context=context,
    )
    scheduler = make_scheduler(
        config,
        weights,
        asked,
        find_artifact(config, weights, asked),
        tokenizer=tokenizer,
        grammars=grammars,
    )
    scheduler.submit(Request(id=ID, prompt=prompt.ids, params=sampling))
    return Job(
        scheduler=scheduler,
        tokenizer=tokenizer,
        prompt=prompt,
        parses=parses,
        answers=sampling.n,
    )


def _prompt(options: GenerateOptions, tokenizer: Tokenizer) -> Prompt:
    if options.prompt is not None:
        text = read_text(STDIN, "--prompt") if options.prompt == STDIN else options.prompt
        return Prompt(ids=tuple(tokenizer.encode(text)), shown=text)
    from runtime.chat import ChatTemplate, parse_chat

    assert options.chat is not None, "checked by prepare"
    chat = parse_chat(read_text(options.chat, "--chat"))
    special_tokens = {"bos_token": tokenizer.bos_token}
    template = ChatTemplate.open(options.checkpoint, special_tokens=special_tokens)
    text = template.render(chat)
    # The last two turns as the model sees them: what was said, and how the answer is opened.
    *_, last, answer = ("", *text.split(TURN))
    shown = last.replace(TURN_END, "\n") + answer
    return Prompt(ids=tuple(tokenizer.encode(text)), shown=shown, tools=chat.tools)


def _constrained(options: GenerateOptions, tokenizer: Tokenizer, prompt: Prompt) -> SamplingParams:
    """In a chat that begins with thinking a constraint is for what follows."""
    params = options.sampling
    if params.constraint is None or options.chat is None:
        return params
    thinks = Markers.of(tokenizer, tools=False).starts_thinking(prompt.ids)
    constraint = dataclasses.replace(params.constraint, after_reasoning=thinks)
    return dataclasses.replace(params, constraint=constraint)


def _done(last: Output, job: Job) -> Done:
    assert last.end is not None
    parsed = None
    if job.parses:
        parser = AnswerParser(
            job.tokenizer,
            request_id=f"{ID}-{last.index}",
            prompt_ids=job.prompt.ids,
            tools=job.prompt.tools,
        )
        parsed = parser.whole(
            [token for step in job.steps for token in step.token_ids],
            "".join(piece for step in job.steps for piece in step.pieces),
        )
    summary = summarise(len(job.prompt.ids), job.steps)
    return Done(index=last.index, end=last.end, summary=summary, parsed=parsed)


def _printer(options: GenerateOptions) -> Printer:
    if options.json:
        return JsonPrinter(many=options.sampling.n > 1)
    return TextPrinter(
        new_console(soft_wrap=True),
        draft_tokens=3 if options.draft_tokens is None else options.draft_tokens,
    )
