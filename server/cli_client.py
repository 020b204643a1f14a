"""`fourstep client`: its options, and what they mean.

Imports no torch: a client needs no model. Keeps true: whatever a user can get wrong is said before
the first call, all else with the status that the worker gave.
"""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.ending import importing

if TYPE_CHECKING:
    from fourstep.v1 import inference_pb2 as pb

    from server.client.conversation import Conversation
    from server.client.session import Client

Address = Annotated[str, typer.Option(metavar="HOST:PORT", help="A worker's, or unix:PATH.")]
Ca = Annotated[
    Path | None,
    typer.Option(metavar="PEM", help="Encrypt; who must have signed the worker's certificate."),
]
Cert = Annotated[Path | None, typer.Option(metavar="PEM", help="This client's certificate.")]
Key = Annotated[Path | None, typer.Option(metavar="PEM", help="And its key.")]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file that holds the token to show.")
]
DEFAULT_ADDRESS = "127.0.0.1:50051"
INTERRUPTED = 130  # as shells say it


def client_command(
    address: Address = DEFAULT_ADDRESS,
    message: Annotated[
        str | None, typer.Option(help="Ask this and leave; - reads it from stdin.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Continue this text and leave; - for stdin.")
    ] = None,
    chat: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON messages, or an object with tools, to start from."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Most tokens of an answer.", show_default="what there is room for"),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep this much probability; 1 is off.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Same seed, same answers.", show_default="any")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text.")
    ] = None,
    spec_tokens: Annotated[
        int | None,
        typer.Option(min=0, max=3, help="Drafts a step.", show_default="as many as pay"),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds that an answer has.")
    ] = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    token_file: TokenFile = None,
) -> None:
    """Talk to a worker: a conversation, or one question from --message, --prompt or a pipe."""
    with importing():
        from fourstep.v1 import inference_pb2 as pb

        from server.cli_ink import Ink, new_console
        from server.client.connection import Target
        from server.client.conversation import Conversation
        from server.client.screen import Screen
        from server.client.session import AnswerError, Client
        from server.errors import fail, gathering, user_errors

    with user_errors(), gathering() as wrong:
        with wrong.kept():
            target = Target(address=address, ca=ca, cert=cert, key=key, token=token_file)
            connection = target.open()
        with wrong.kept():
            start = _start(chat)
            once = _once(message, prompt, start)
    sampling = pb.SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop=stop or ()
    )
    with connection.channel() as channel:
        client = Client(
            channel=channel,
            metadata=connection.metadata,
            screen=Screen(
                Ink(new_console(soft_wrap=True)), Ink(new_console(soft_wrap=True, stderr=True))
            ),
            sampling=sampling,
            draft_tokens=spec_tokens,
            timeout=timeout,
        )
        try:
            run(client, once, Conversation(start), address)
        except AnswerError as error:
            raise fail(error, error.code) from error


def run(
    client: "Client", once: "pb.Prompt | None", conversation: "Conversation", address: str
) -> None:
    """Raises AnswerError, typer.Exit."""
    from server.client.session import converse

    model = client.model(address)
    drafts = model.draft_tokens if client.draft_tokens is None else client.draft_tokens
    if once is not None:
        client.screen.legend(drafts)
        if client.answer(once).end is None:
            raise typer.Exit(INTERRUPTED)
        return
    client.screen.note(
        f"{model.name} at {address}, {model.context} positions; "
        "Ctrl-C ends an answer, Ctrl-D the conversation\n"
    )
    client.screen.legend(drafts)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() then has a line editor and a history
    # A prompt is for people: where the answers go to a file, it would be part of them.
    converse(client, conversation, input if sys.stdout.isatty() else lambda _: input())


def _start(chat: Path | None) -> "pb.Chat":
    from fourstep.v1 import inference_pb2 as pb

    from runtime.chat import parse_chat
    from server.client.conversation import chat_message
    from server.files import read_text

    return pb.Chat() if chat is None else chat_message(parse_chat(read_text(str(chat), "--chat")))


def _once(message: str | None, prompt: str | None, start: "pb.Chat") -> "pb.Prompt | None":
    """What is to be answered before leaving; None where somebody is there to converse with."""
    from fourstep.v1 import inference_pb2 as pb

    from server.client.conversation import Conversation
    from server.files import STDIN, read_text

    if prompt is not None:
        if message is not None or start.messages:
            raise ValueError("--prompt is continued as it is: give no --message or --chat with it")
        return pb.Prompt(text=read_text(STDIN, "--prompt") if prompt == STDIN else prompt)
    conversation = Conversation(start)
    if message is None:
        if sys.stdin.isatty():
            return None
        if conversation.waits:
            return conversation.prompt()
        message = STDIN
    text = read_text(STDIN, "--message").strip() if message == STDIN else message
    if not text:
        raise ValueError("there is no question: --message or stdin is empty")
    conversation.say(text)
    return conversation.prompt()
