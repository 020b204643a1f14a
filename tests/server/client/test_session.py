"""A conversation with a worker: turns, Ctrl-C, failures, the end."""

import io
from collections.abc import Iterator

import pytest
from fourstep.v1 import inference_pb2 as pb
from rich.console import Console

from server.cli_ink import Ink
from server.client.conversation import Conversation
from server.client.screen import Screen
from server.client.session import AnswerError, Client, converse
from tests.server.rpc.working import Running, running, until
from tests.server.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(write_checkpoint(tmp_path_factory.mktemp("client") / "tiny")) as found:
        yield found


class Hand(Screen):
    """A screen at which somebody presses Ctrl-C after so many tokens of an answer."""

    def __init__(self) -> None:
        self.out, self.aside = io.StringIO(), io.StringIO()
        super().__init__(*(Ink(Console(file=file)) for file in (self.out, self.aside)))
        self.patience: int | None = None

    def show(self, message: pb.GenerateResponse, *, parsed: bool) -> None:
        super().show(message, parsed=parsed)
        if self.patience is not None:
            self.patience -= 1
            if self.patience == 0:
                self.patience = None
                raise KeyboardInterrupt


def client(worker: Running, hand: Hand, **sampling: float | int) -> Client:
    return Client(
        channel=worker.channel,
        metadata=(),
        screen=hand,
        sampling=pb.SamplingParams(**{"max_tokens": 6, **sampling}),  # pyright: ignore[reportArgumentType]
    )


class Typed:
    """Lines that are typed; a key is raised, and at the end Ctrl-D is pressed."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self.lines = list(lines)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = self.lines.pop(0) if self.lines else EOFError
        if isinstance(line, str):
            return line
        raise line


def roles(conversation: Conversation) -> list[str]:
    return [message.role for message in conversation.prompt().chat.messages]


def test_the_text_is_what_the_worker_streams(worker: Running) -> None:
    hand = Hand()
    reply = client(worker, hand).answer(pb.Prompt(text="def read"))
    request = pb.GenerateRequest(
        prompt=pb.Prompt(text="def read"), sampling=pb.SamplingParams(max_tokens=6)
    )
    text = "".join(message.text for message in worker.inference.Generate(request))
    assert hand.out.getvalue().rstrip("\n") == text.rstrip("\n")
    assert reply.end is not None
    assert reply.end.usage.completion_tokens == 6
    assert "6 tokens in" in hand.aside.getvalue()


def test_a_conversation_goes_on_until_its_end(worker: Running) -> None:
    conversation = Conversation(pb.Chat())
    typed = Typed("Hello", "  ", KeyboardInterrupt, "again")
    hand = Hand()
    converse(client(worker, hand), conversation, typed)
    assert roles(conversation) == ["user", "assistant", "user", "assistant"]
    assert "Ctrl-D ends the conversation" in hand.aside.getvalue()
    assert set(typed.prompts) == {"> "}


def test_ctrl_c_ends_the_answer_and_not_the_session(worker: Running) -> None:
    conversation, hand = Conversation(pb.Chat()), Hand()
    hand.patience = 2
    converse(client(worker, hand, max_tokens=150), conversation, Typed("Hello", "again"))
    assert hand.aside.getvalue().count("stopped") == 1
    assert roles(conversation) == ["user", "assistant", "user", "assistant"]
    until(lambda: worker.served.service.load["running"] == 0)


def test_a_call_that_fails_leaves_the_conversation_as_it_was(
    worker: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation, hand = Conversation(pb.Chat()), Hand()
    converse(client(worker, hand), conversation, Typed("x" * 2000, "short"))
    assert roles(conversation) == ["user", "assistant"]
    said = capsys.readouterr().err
    assert said.startswith("fourstep: error: INVALID_ARGUMENT: ")
    assert len(said.splitlines()) == 1


def test_results_of_calls_are_asked_for(worker: Running) -> None:
    call = pb.ToolCall(id="a", name="f", arguments_json="{}")
    start = pb.Chat(
        messages=[
            pb.Message(role="user", parts=[pb.Part(text="Call")]),
            pb.Message(role="assistant", parts=[pb.Part(text="")], tool_calls=[call]),
        ]
    )
    conversation, typed = Conversation(start), Typed("rain")
    converse(client(worker, Hand()), conversation, typed)
    assert typed.prompts[0] == "f returns> "
    assert roles(conversation) == ["user", "assistant", "tool", "assistant"]


def test_a_start_that_cannot_be_answered_ends_it(
    worker: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    start = pb.Chat(messages=[pb.Message(role="user", parts=[pb.Part(text="x" * 2000)])])
    converse(client(worker, Hand()), Conversation(start), Typed("never read"))
    assert "INVALID_ARGUMENT" in capsys.readouterr().err


def test_what_a_worker_says_of_itself(worker: Running) -> None:
    assert client(worker, Hand()).model("here").name == "tiny"


def test_a_deadline_is_the_answers(worker: Running) -> None:
    short = Client(
        channel=worker.channel,
        metadata=(),
        screen=Hand(),
        sampling=pb.SamplingParams(),
        timeout=1e-6,
    )
    with pytest.raises(AnswerError, match=r"^DEADLINE_EXCEEDED: "):
        short.answer(pb.Prompt(text="x"))
