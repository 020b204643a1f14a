"""`fourstep client` at work: one question answered, or a conversation until its end.

Joins conversation, screen and calls. Keeps true: Ctrl-C ends the answer that is coming and nothing
else; after a failed call the conversation is what it was before.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from fourstep.v1 import control_pb2, control_pb2_grpc, inference_pb2_grpc
from fourstep.v1 import inference_pb2 as pb

from server.client.connection import Metadata, exit_code, first_said, said
from server.client.conversation import Conversation, Reply
from server.client.screen import Screen, closing_line

Read = Callable[[str], str]  # a line for a prompt; EOFError and KeyboardInterrupt as input()


class AnswerError(Exception):
    """A call failed; the message is its status, `code` what a command ends with then."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Client:
    """One worker. `sampling`, `draft_tokens` and `timeout` (in seconds) go with every request."""

    channel: grpc.Channel
    metadata: Metadata
    screen: Screen
    sampling: pb.SamplingParams
    draft_tokens: int | None = None
    timeout: float | None = None

    def model(self, address: str) -> control_pb2.GetModelResponse:
        """The first call, to a worker at this address. Raises AnswerError."""
        stub = control_pb2_grpc.ControlStub(self.channel)
        try:
            return stub.GetModel(
                control_pb2.GetModelRequest(), metadata=self.metadata, timeout=self.timeout
            )
        except grpc.RpcError as error:
            said_first = first_said(error, address, timeout=self.timeout)
            raise AnswerError(said_first, exit_code(error)) from error

    def answer(self, prompt: pb.Prompt) -> Reply:
        """Ask, and show what comes; cut short by Ctrl-C, without its end. Raises AnswerError."""
        request = pb.GenerateRequest(
            prompt=prompt, sampling=self.sampling, draft_tokens=self.draft_tokens
        )
        request.token_by_token = True  # so that each has its colour
        stub = inference_pb2_grpc.InferenceStub(self.channel)
        reply = Reply()
        self.screen.begin(prompt.text)
        call = stub.Generate(request, metadata=self.metadata, timeout=self.timeout)
        try:
            for message in call:
                self.screen.show(message, parsed=prompt.HasField("chat"))
                reply.add(message)
        except KeyboardInterrupt:
            call.cancel()
            self.screen.end("stopped")
            return reply
        except grpc.RpcError as error:
            self.screen.end()
            raise AnswerError(said(error, timeout=self.timeout), exit_code(error)) from error
        assert reply.end is not None, "a call without an error ends with the answer"
        self.screen.end(closing_line(reply.end, self.sampling.max_tokens))
        return reply


def converse(client: Client, conversation: Conversation, read: Read) -> None:
    """Until the user's Ctrl-D."""
    while True:
        try:
            if not conversation.waits:
                _listen(conversation, read)
        except EOFError:
            client.screen.note("")
            return
        except KeyboardInterrupt:
            client.screen.note("\nCtrl-D ends the conversation")
            conversation.take_back()
            continue
        try:
            conversation.take(client.answer(conversation.prompt()))
        except AnswerError as error:
            sys.stderr.write(f"fourstep: error: {error}\n")
            conversation.take_back()
        if conversation.waits:  # what the conversation began with was not answered
            return


def _listen(conversation: Conversation, read: Read) -> None:
    """The user's turn: results of the calls that were made, or something to say."""
    if calls := conversation.calls:
        for call in calls:
            conversation.tell(call, read(f"{call.name} returns> "))
        return
    while not (text := read("> ").strip()):
        pass
    conversation.say(text)
