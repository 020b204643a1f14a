"""Faults that others' servers were reported to have: each with what is right here.

Capabilities that are not accepted, failures that look like answers, tokens that are counted as
messages. Keeps true: what is advertised is taken to its edge, and not beyond.
"""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fourstep.v1 import control_pb2
from fourstep.v1 import inference_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2 as gateway_pb2

from runtime import failpoints, streams
from runtime.answer import End, Output
from runtime.numbers import Numbers
from runtime.request import SamplingParams, Step
from runtime.stop import Scanner
from server.cli_serve import open_served
from server.rpc import asking
from server.rpc.answering import Answers
from server.rpc.served import Asked
from server.vllm import asking as gateway_asking
from tests.server.rpc.test_inference import health, idle, joined
from tests.server.rpc.working import CONTEXT, Running, running, text_request, tiny_config, until
from tests.server.tiny_checkpoint import write_checkpoint

SOURCES: dict[str, Any] = {
    "json_schema": '{"type": "integer"}',
    "json_object": True,
    "regex": "[a-c]+",
    "ebnf": 'start: "a" | "b"',
    "choice": pb.Choices(texts=["a", "bc"]),
    "structural_tag": '{"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], '
    '"triggers": ["<f>"]}',
}


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm({})


def code_of(worker: Running, request: pb.GenerateRequest) -> str:
    """What a request ends with, its answers being as long as they are asked to be."""
    try:
        messages = list(worker.inference.Generate(request))
    except grpc.RpcError as error:
        call: Any = error
        return call.code().name
    answers = {message.index for message in messages}
    assert len(answers) == max(1, request.sampling.n)
    for index in answers:
        joined(messages, index)
    return "OK"


@pytest.fixture(scope="module")
def model(worker: Running) -> control_pb2.GetModelResponse:
    return worker.control.GetModel(control_pb2.GetModelRequest())


def test_each_advertised_constraint_is_accepted(
    worker: Running, model: control_pb2.GetModelResponse
) -> None:
    assert set(model.constraints) == set(SOURCES)
    for kind in model.constraints:
        constraint = pb.Constraint(after_reasoning=False, **{kind: SOURCES[kind]})
        request = text_request(constraint=constraint, max_tokens=3, ignore_eos=False)
        assert code_of(worker, request) == "OK", kind


@pytest.mark.parametrize("template", [True, False])
def test_chats_are_advertised_where_they_are_accepted(
    worker: Running, monkeypatch: pytest.MonkeyPatch, template: bool
) -> None:
    if not template:
        monkeypatch.setattr(worker.served, "template", None)
    request, said = text_request(max_tokens=2), pb.Message(role="user", parts=[pb.Part(text="a")])
    request.prompt.CopyFrom(pb.Prompt(chat=pb.Chat(messages=[said])))
    told = worker.control.GetModel(control_pb2.GetModelRequest())
    assert told.chat == template
    assert code_of(worker, request) == ("OK" if template else "INVALID_ARGUMENT")


@pytest.mark.parametrize("beyond", [0, 1])
def test_advertised_numbers_are_the_largest_accepted(
    worker: Running, model: control_pb2.GetModelResponse, beyond: int
) -> None:
    drafts = text_request(max_tokens=3)
    drafts.draft_tokens = model.draft_tokens + beyond
    last = model.vocab_size - 1 + beyond
    ids = text_request(max_tokens=3)
    ids.prompt.CopyFrom(pb.Prompt(token_ids=pb.TokenIds(ids=[last])))
    room = text_request(max_tokens=3)
    room.prompt.CopyFrom(pb.Prompt(token_ids=pb.TokenIds(ids=[1] * (model.context - 3 + beyond))))
    requests = {
        "max_answers": text_request(n=model.max_answers + beyond, max_tokens=2),
        "max_logprobs": text_request(
            logprobs=model.max_logprobs + beyond,
            prompt_logprobs=model.max_logprobs + beyond,
            max_tokens=2,
        ),
        "draft_tokens": drafts,
        "vocab_size": ids,
        "context": room,
        "vocab_size of a bias": text_request(logit_bias={last: 1.0}, max_tokens=2),
    }
    wanted = "INVALID_ARGUMENT" if beyond else "OK"
    found = {name: code_of(worker, request) for name, request in requests.items()}
    assert found == dict.fromkeys(requests, wanted)


@pytest.mark.parametrize("name", failpoints.ONE_CALL)
def test_a_failure_half_way_is_a_status_behind_what_was_made(worker: Running, name: str) -> None:
    whole = [token for m in worker.inference.Generate(text_request()) for token in m.token_ids]
    failpoints.arm({name: 3})
    call, messages = worker.inference.Generate(text_request()), list[pb.GenerateResponse]()
    with pytest.raises(grpc.RpcError) as caught:
        messages.extend(call)
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert caught.value.details() == f"injected failure: {name}"
    idle(worker)
    assert not any(message.HasField("end") for message in messages)
    again = list(worker.inference.Generate(text_request()))
    assert joined(again)[0] == whole, "others are served as before"
    for message in messages:
        tokens = list(message.token_ids)
        assert whole[: len(tokens)] == tokens
        whole = whole[len(tokens) :]


def test_a_reader_who_does_not_read_is_given_up(
    worker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept for it has a bound, whatever the length of the answers."""
    monkeypatch.setattr(streams, "MOST_KEPT", 0)  # nobody reads fast enough
    with pytest.raises(grpc.RpcError) as caught:
        list(worker.inference.Generate(text_request(max_tokens=200)))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    idle(worker)


def test_tokens_one_by_one_keep_their_logprobs(worker: Running) -> None:
    request = text_request(logprobs=2, prompt_logprobs=1, temperature=0.8, seed=3)
    by_step = list(worker.inference.Generate(request))
    request.token_by_token = True
    by_token = list(worker.inference.Generate(request))
    assert len(by_token) == 12 > len(by_step)
    for name in ("token_ids", "logprobs", "prompt_logprobs"):
        one, other = (
            [each for message in messages for each in getattr(message, name)]
            for messages in (by_step, by_token)
        )
        assert one == other
    for name in ("drafted", "accepted"):
        assert sum(getattr(m, name) for m in by_step) == sum(getattr(m, name) for m in by_token)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_an_incomplete_last_character_is_in_every_part(worker: Running, one_by_one: bool) -> None:
    """Fault I4: what is parsed of an answer is all of its text."""
    tokenizer = worker.served.tokenizer
    tokens = tuple(tokenizer.encode("a\U0001f600")[1:-1])
    scanned = Scanner(SamplingParams(max_tokens=len(tokens)), tokenizer=tokenizer).push(tokens)
    answers = Answers(
        request_id="a",
        tokenizer=tokenizer,
        prompt=Asked(ids=(1,)),
        parse=True,
        tool_choice="auto",
        skip_special=True,
        seed=0,
        token_by_token=one_by_one,
    )
    step = Step(
        token_ids=tokens, drafted=(), accepted=0, finish_reason="length", pieces=scanned.pieces
    )
    end = End(reason="length", numbers=Numbers(prompt_tokens=1))
    messages = list(answers.messages(Output(request_id="a", index=0, step=step, end=end)))
    assert len(messages) == (len(tokens) if one_by_one else 1)
    assert joined(messages)[1] == "a\ufffd" == "".join(message.content for message in messages)


@pytest.mark.parametrize("name", ["grace_seconds", "timeout_seconds"])
@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_seconds_that_are_none_drain_nothing(worker: Running, name: str, seconds: float) -> None:
    request = control_pb2.DrainRequest()
    setattr(request, name, seconds)
    with pytest.raises(grpc.RpcError) as caught:
        worker.control.Drain(request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert name in (caught.value.details() or "")
    assert health(worker, "") == 1, "still serving"


def test_a_longer_context_of_the_engines_is_nobodys(
    worker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault E10: programs are built for a few contexts, and the next longer one is taken."""
    prompt = len(worker.served.tokenizer.encode("def read"))
    monkeypatch.setattr(worker.served, "context", prompt + 20)
    assert code_of(worker, text_request(max_tokens=20)) == "OK"
    assert code_of(worker, text_request(max_tokens=21)) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("prompt", [1, 50_000])
def test_nothing_caps_an_answer_but_the_context(
    worker: Running, monkeypatch: pytest.MonkeyPatch, prompt: int
) -> None:
    """Fault E10: who does not say how long an answer may be has all the room there is."""
    monkeypatch.setattr(worker.served, "context", most := 10**6)
    asked = worker.served.tokens((1,) * prompt)
    room = most - prompt
    default = asking.sampling(pb.SamplingParams(), asked, worker.served)
    largest = asking.sampling(pb.SamplingParams(max_tokens=room), asked, worker.served)
    assert default.max_tokens == largest.max_tokens == room
    assert worker.served.request("a", asked, default).request.params.max_tokens == room
    for said in (gateway_pb2.SamplingParams(), gateway_pb2.SamplingParams(max_tokens=most)):
        found = gateway_asking.sampling(said, asked, worker.served, temperature=0.0)
        assert found.max_tokens == room


def test_a_context_that_the_model_does_not_have_is_refused(worker: Running, folder: Path) -> None:
    """Fault E10."""
    config, most = tiny_config(folder), worker.served.config.max_positions
    longer = dataclasses.replace(config.model, context=most + 1)
    with pytest.raises(ValueError, match=f"context = {most + 1}: the model has {most} positions"):
        open_served(dataclasses.replace(config, model=longer))


def test_the_whole_context_of_the_model_can_be_served(tmp_path: Path) -> None:
    with running(write_checkpoint(tmp_path / "tiny", positions=CONTEXT)) as worker:
        asked = pb.Prompt(token_ids=pb.TokenIds(ids=[1] * (CONTEXT - 12)))
        request = text_request()
        request.prompt.CopyFrom(asked)
        assert code_of(worker, request) == "OK"


def test_the_context_is_told_with_a_prompt(worker: Running) -> None:
    prompt = pb.Prompt(token_ids=pb.TokenIds(ids=[1] * (CONTEXT - 1)))
    assert worker.inference.Tokenize(pb.TokenizeRequest(prompt=prompt)).room == 1


@pytest.mark.parametrize("way", ["leave", "cancel"])
def test_who_goes_while_the_worker_drains_is_not_waited_for(folder: Path, way: str) -> None:
    with running(folder, grace_s=0.0, timeout_s=600.0) as draining:
        request = text_request(max_tokens=240)
        request.request_id = "mine"
        call = draining.inference.Generate(request)
        next(call)
        draining.drain()
        until(lambda: draining.served.draining)
        if way == "leave":
            call.cancel()
        else:
            draining.inference.Cancel(pb.CancelRequest(request_ids=["mine"]))
        until(lambda: draining.code is not None)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    assert caught.value.code() == grpc.StatusCode.CANCELLED
    assert draining.code == 0
