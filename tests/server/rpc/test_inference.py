"""fourstep.v1.Inference by a real client: the same tokens as the runtime's, and clear statuses."""

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from fourstep.v1 import control_pb2
from fourstep.v1 import inference_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtime.answer import Request
from runtime.request import SamplingParams
from runtime.scheduler import QueueFullError
from tests.server.rpc.working import CONTEXT, Running, reason_of, running, text_request, until


def alone(worker: Running, text: str, params: SamplingParams) -> tuple[list[int], str]:
    """The runtime's answer, through the service and without gRPC."""
    prompt = tuple(worker.served.tokenizer.encode(text))
    outputs = list(worker.served.service.submit(Request(id="alone", prompt=prompt, params=params)))
    steps = [output.step for output in outputs if output.step]
    tokens = [token for step in steps for token in step.token_ids]
    return tokens, "".join(piece for step in steps for piece in step.pieces)


def joined(messages: list[pb.GenerateResponse], index: int = 0) -> tuple[list[int], str]:
    own = [message for message in messages if message.index == index]
    assert [message.HasField("end") for message in own] == [False] * (len(own) - 1) + [True]
    return [t for message in own for t in message.token_ids], "".join(m.text for m in own)


@pytest.mark.parametrize("values", [{}, {"temperature": 0.9, "seed": 2**63 + 5, "top_k": 40}])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_stream_is_what_the_runtime_says(
    worker: Running, values: dict[str, Any], one_by_one: bool
) -> None:
    request = text_request(**values)
    request.token_by_token = one_by_one
    messages = list(worker.inference.Generate(request))
    params = SamplingParams(max_tokens=12, ignore_eos=True, **values)
    assert joined(messages) == alone(worker, "def read", params)
    assert not one_by_one or all(len(message.token_ids) == 1 for message in messages)
    usage = messages[-1].end.usage
    assert messages[-1].end.reason == pb.FINISH_REASON_LENGTH
    assert usage.completion_tokens == 12
    assert usage.accepted_tokens == sum(message.accepted for message in messages)
    assert usage.seed == values.get("seed", usage.seed)


def test_several_answers_differ_and_end_once_each(worker: Running) -> None:
    messages = list(worker.inference.Generate(text_request(n=3, temperature=1.5, seed=3)))
    answers = [joined(messages, index)[0] for index in range(3)]
    assert len({tuple(answer) for answer in answers}) == 3


def test_logprobs_come_with_each_token(worker: Running) -> None:
    request = text_request(logprobs=2, prompt_logprobs=0)
    messages = list(worker.inference.Generate(request))
    for message in messages:
        assert [found.token_id for found in message.logprobs] == list(message.token_ids)
        assert all(len(found.top) == 2 for found in message.logprobs)
    prompt = worker.served.tokenizer.encode("def read")
    assert [found.token_id for found in messages[0].prompt_logprobs] == prompt[1:]


def test_a_chat_is_rendered_and_a_prompt_counted(worker: Running) -> None:
    said = pb.Message(role="user", parts=[pb.Part(text="again")])
    prompt = pb.Prompt(chat=pb.Chat(messages=[said]))
    found = worker.inference.Tokenize(pb.TokenizeRequest(prompt=prompt))
    assert found.count == len(found.token_ids)
    assert found.room == CONTEXT - found.count
    request = text_request()
    request.prompt.CopyFrom(prompt)
    messages = list(worker.inference.Generate(request))
    assert messages[-1].end.usage.prompt_tokens == found.count
    parsed = "".join(message.reasoning + message.content for message in messages)
    assert parsed.replace("</think>", "") in joined(messages)[1].replace("</think>", "")


def said(*parts: pb.Part, role: str = "user") -> pb.GenerateRequest:
    chat = pb.Chat(messages=[pb.Message(role=role, parts=parts)])
    return pb.GenerateRequest(prompt=pb.Prompt(chat=chat))


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (pb.GenerateRequest(), "INVALID_ARGUMENT", "prompt"),
        (text_request(temperature=-1), "INVALID_ARGUMENT", "temperature"),
        (text_request(n=99), "INVALID_ARGUMENT", "n = 99"),
        (text_request(max_tokens=CONTEXT), "INVALID_ARGUMENT", "context"),
        (
            text_request(constraint=pb.Constraint(json_object=False)),
            "INVALID_ARGUMENT",
            "json_object",
        ),
        # Which shows with the second token.
        (
            text_request(constraint=pb.Constraint(regex="a{9999}{9999}"), ignore_eos=False),
            "INVALID_ARGUMENT",
            "constraint",
        ),
        (said(pb.Part()), "INVALID_ARGUMENT", "messages[0].parts[0]"),
        (said(role="\u263a" * 30_000), "INVALID_ARGUMENT", "messages[0].role"),
        (
            pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[2**31]))),
            "INVALID_ARGUMENT",
            "outside",
        ),
        (said(pb.Part(image=pb.Image(url="x"))), "UNIMPLEMENTED", "images"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    worker: Running, request_: pb.GenerateRequest, code: str, words: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(worker.inference.Generate(request_))
    assert caught.value.code() == grpc.StatusCode[code]
    assert words in (caught.value.details() or "")
    assert reason_of(caught.value) == {"UNIMPLEMENTED": "UNSUPPORTED"}.get(code, "INVALID")


def test_a_full_queue_is_resource_exhausted(worker: Running) -> None:
    gate = threading.Event()
    worker.served.service._post(gate.wait)  # all come between two steps, and four may wait
    calls = [worker.inference.Generate(text_request()) for _ in range(7)]
    time.sleep(0.5)
    gate.set()
    codes = []
    for call in calls:
        try:
            joined(list(call))
        except grpc.RpcError as error:
            codes.append((error.code(), reason_of(error)))
    assert codes == [(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")] * 3
    idle(worker)


def test_where_there_is_no_place_nothing_is_read(
    worker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else refusing takes as much of the processor as the tokens of those that run."""

    def full() -> None:
        raise QueueFullError("4 answers wait, 4 may: try again later")

    monkeypatch.setattr(worker.served.service, "check_room", full)
    generate = worker.channel.unary_stream("/fourstep.v1.Inference/Generate")
    with pytest.raises(grpc.RpcError) as caught:
        list(generate(b"is no message"))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    idle(worker)


def idle(worker: Running) -> None:
    """Waits until nothing runs; every block is back."""
    phases = ("queued", "loading", "running")
    until(lambda: not any(worker.served.service.load[phase] for phase in phases))
    assert worker.served.service.load["blocks_used"] == 0


def test_who_goes_away_frees_the_slot(worker: Running) -> None:
    call = worker.inference.Generate(text_request(max_tokens=240))
    next(call)
    call.cancel()
    idle(worker)


def test_cancel_ends_the_stream_and_again_is_no_error(worker: Running) -> None:
    request = text_request(max_tokens=240)
    request.request_id = "mine"
    call = worker.inference.Generate(request)
    next(call)
    cancelled = worker.inference.Cancel(pb.CancelRequest(request_ids=["mine", "nobody"]))
    assert list(cancelled.cancelled_ids) == ["mine"]
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() == grpc.StatusCode.CANCELLED
    assert reason_of(caught.value) == "CANCELLED"
    assert not worker.inference.Cancel(pb.CancelRequest(request_ids=["mine"])).cancelled_ids
    idle(worker)


def test_a_deadline_ends_the_request(worker: Running) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(worker.inference.Generate(text_request(max_tokens=240), timeout=0.2))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    idle(worker)


def test_what_a_worker_says_of_itself(worker: Running) -> None:
    model = worker.control.GetModel(control_pb2.GetModelRequest())
    assert (model.name, model.context, model.draft_tokens) == ("tiny", CONTEXT, 3)
    assert not model.images
    engine = worker.control.GetEngine(control_pb2.GetEngineRequest())
    assert engine.compiler == "eager"
    assert not engine.HasField("artifact_sha256")
    assert any("decode width 4" in one.name for one in engine.engines)
    load = worker.control.GetLoad(control_pb2.GetLoadRequest())
    assert (load.slots, load.draining) == (2, False)
    for name in ("", "fourstep.v1.Inference", "fourstep.v1.Control"):
        assert health(worker, name) == health_pb2.HealthCheckResponse.SERVING


def test_the_artifact_is_told_by_its_digest(
    worker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = dataclasses.replace(worker.served.identity, artifact="0" * 64)
    monkeypatch.setattr(worker.served, "identity", who)
    engine = worker.control.GetEngine(control_pb2.GetEngineRequest())
    assert engine.artifact_sha256 == "0" * 64


def health(worker: Running, service: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(worker.channel)  # its methods are made at run time
    return stub.Check(health_pb2.HealthCheckRequest(service=service)).status


def test_draining_finishes_what_runs_and_takes_nothing_new(folder: Path) -> None:
    with running(folder, grace_s=0.0) as worker:
        call = worker.inference.Generate(text_request(max_tokens=60))
        first = next(call)
        worker.control.Drain(control_pb2.DrainRequest(timeout_seconds=30))
        until(lambda: worker.served.draining)
        assert health(worker, "") == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            list(worker.inference.Generate(text_request()))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        tokens, _ = joined([first, *call])
        assert len(tokens) == 60
    assert worker.code == 0


def test_a_failed_engine_ends_the_worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(folder) as worker:
        scheduler = worker.served.service._scheduler

        def broken() -> None:
            raise RuntimeError("a broken step")

        monkeypatch.setattr(scheduler, "step", broken)
        with pytest.raises(grpc.RpcError) as caught:
            list(worker.inference.Generate(text_request()))
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert "a broken step" in (caught.value.details() or "")
        assert reason_of(caught.value) == "FAULT"
        until(lambda: worker.code is not None)
    assert worker.code == 1


def test_an_engine_that_fails_with_no_stream_open_ends_the_worker(folder: Path) -> None:
    """Nobody asks, and nobody has asked yet: it is the worker that notices, and tells routers."""

    def broken() -> None:
        raise RuntimeError("broken")

    with running(folder) as worker:
        stub: Any = health_pb2_grpc.HealthStub(worker.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        worker.served.service._post(broken)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert worker.served.leaving
        until(lambda: worker.code is not None)
    assert worker.code == 1
