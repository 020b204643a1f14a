"""The options of `fourstep generate`, and what they mean as parameters of a request.

Knows the command line; imports the runtime when it is called, so that help and wrong options answer
without loading torch. Keeps true: an option that would have no effect is refused.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.ending import importing
from server.options import NANO, AnyCheckpoint, CompilerName, Pin, Precision, PrecisionName

if TYPE_CHECKING:
    from runtime.request import Constraint


class SpecTokens(StrEnum):
    auto = "auto"
    none = "0"
    one = "1"
    two = "2"
    three = "3"


def generate_command(
    checkpoint: AnyCheckpoint = NANO,
    prompt: Annotated[
        str | None, typer.Option(help="Text to continue; - reads it from stdin.")
    ] = None,
    chat: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="JSON messages to answer, or an object with tools; - for stdin."
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    min_tokens: Annotated[int, typer.Option(help="Nothing ends an answer before.")] = 0,
    n: Annotated[int, typer.Option("-n", help="Answers, one after the other.")] = 1,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep this much probability; 1 is off.")] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Drop tokens below this share of the likeliest; 0 is off.")
    ] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Taken from each token that was generated; 0 is off.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="And this for each time it was; 0 is off.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Divides what was seen, prompt included; 1 is off.")
    ] = 1.0,
    logit_bias: Annotated[
        str | None, typer.Option(metavar="JSON", help="""Added to tokens, as {"11": -100}.""")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Same seed, same text, at any --spec-tokens.")
    ] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text.")
    ] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="End at this token.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on behind the model's own end.")
    ] = False,
    bad_word: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Never write this text.")
    ] = None,
    json_schema: Annotated[
        str | None, typer.Option(metavar="JSON|FILE", help="Answer with JSON of this schema.")
    ] = None,
    json_object: Annotated[
        bool, typer.Option("--json-object", help="Answer with a JSON object.")
    ] = False,
    regex: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Answer with a text that matches.")
    ] = None,
    grammar: Annotated[
        str | None, typer.Option(metavar="FILE", help="Answer with a text of this EBNF grammar.")
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Answer with this text or another.")
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(metavar="K", help="Tell each token's logprob and the K likeliest; --json."),
    ] = None,
    spec_tokens: Annotated[
        SpecTokens, typer.Option(help="Tokens drafted a step; auto goes by measured cost.")
    ] = SpecTokens.auto,
    precision: Precision = PrecisionName.bf16,
    compiler: Annotated[
        CompilerName, typer.Option(help="eager needs no build and is slow.")
    ] = CompilerName.inductor,
    artifact: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Engines to use.", show_default="the cache's, or built"),
    ] = None,
    artifact_sha256: Pin = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a step, then one with the counts.")
    ] = False,
) -> None:
    """Generate text from one prompt or chat, each token coloured by who proposed it."""
    with importing():
        from runtime.request import SamplingParams
        from server.cli_engine import check_engines
        from server.cli_generate import GenerateOptions, run
        from server.errors import gathering, user_errors

    bias: dict[int, float] = {}
    constraint: Constraint | None = None
    with user_errors(), gathering() as wrong:
        with wrong.kept():
            if (prompt is None) == (chat is None):
                raise ValueError("give one of --prompt TEXT and --chat FILE")
        with wrong.kept():
            if logprobs is not None and not as_json:
                raise ValueError("--logprobs is for --json")
        with wrong.kept():
            bias = bias_of(logit_bias)
        with wrong.kept():
            constraint = constraint_of(json_schema, json_object, regex, grammar, choice)
        with wrong.kept():
            check_engines(compiler.value, artifact, artifact_sha256)
        with wrong.kept(), by_option():
            sampling = SamplingParams(
                max_tokens=max_tokens,
                min_tokens=min_tokens,
                n=n,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                presence_penalty=presence_penalty,
                frequency_penalty=frequency_penalty,
                repetition_penalty=repetition_penalty,
                logit_bias=bias,
                seed=seed,
                stop=tuple(stop or ()),
                stop_token_ids=tuple(stop_token_id or ()),
                ignore_eos=ignore_eos,
                bad_words=tuple(bad_word or ()),
                logprobs=logprobs,
                constraint=constraint,
            )
    run(
        GenerateOptions(
            checkpoint=checkpoint,
            prompt=prompt,
            chat=chat,
            sampling=sampling,
            draft_tokens=None if spec_tokens is SpecTokens.auto else int(spec_tokens.value),
            precision=precision.value,
            compiler=compiler.value,
            artifact=artifact,
            artifact_sha256=artifact_sha256,
            json=as_json,
        )
    )


# Options that are not called as the parameter that they stand for.
_OPTIONS = {
    "n": "-n",
    "bad_words": "--bad-word",
    "stop_token_ids": "--stop-token-id",
    "choices": "--choice",
}


@contextmanager
def by_option(**options: str) -> Iterator[None]:
    """Parameters that are out of range are told by their options, these and _OPTIONS."""
    from runtime.request import ParamsError
    from server.errors import ProblemsError

    known = _OPTIONS | options
    try:
        yield
    except ParamsError as error:
        told = []
        for field, shown, allowed in error.wrong:
            option = known.get(field, f"--{field.replace('_', '-')}")
            several = shown.startswith(("(", "mappingproxy"))  # Python's words, not the user's
            told.append(f"{option}{'' if several else f' {shown}'}: must be {allowed}")
        raise ProblemsError(told) from error


def bias_of(text: str | None) -> dict[int, float]:
    """{"token id": number} as a mapping. Raises ValueError."""
    try:
        given: Any = json.loads(text or "{}")
        return {int(token): value for token, value in given.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f'--logit-bias: expected JSON as {{"11": -100}}, got {text}') from error


def constraint_of(
    json_schema: str | None,
    json_object: bool,
    regex: str | None,
    grammar: str | None,
    choice: list[str] | None,
) -> "Constraint | None":
    """The one that is given. Raises ValueError for more than one, or a missing file."""
    from runtime.request import Constraint
    from server.files import read_text

    found: list[Constraint] = []
    if json_schema is not None:
        inline = json_schema.lstrip().startswith("{")
        source = json_schema if inline else read_text(json_schema, "--json-schema")
        with by_option(source="--json-schema"):
            found.append(Constraint(kind="json_schema", source=source))
    if json_object:
        found.append(Constraint(kind="json_object"))
    if regex is not None:
        with by_option(source="--regex"):
            found.append(Constraint(kind="regex", source=regex))
    if grammar is not None:
        with by_option(source="--grammar"):
            found.append(Constraint(kind="ebnf", source=read_text(grammar, "--grammar")))
    if choice:
        with by_option():
            found.append(Constraint(kind="choice", choices=tuple(choice)))
    if len(found) > 1:
        raise ValueError(
            "give one of --json-schema, --json-object, --regex, --grammar and --choice"
        )
    return found[0] if found else None
