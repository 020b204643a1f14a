"""vllm.grpc.engine's Generate: the runtime's tokens, counts and logprobs, one end an answer."""

from typing import Any

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from runtime.answer import Output, Request
from runtime.request import Constraint, SamplingParams
from tests.server.rpc.working import CONTEXT, Running
from tests.server.vllm.calling import Stub, completes, tokens_request


def outputs_of(worker: Running, ids: list[int], **values: Any) -> list[Output]:
    """The runtime's, without gRPC."""
    chosen: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, **values}
    params = SamplingParams(**chosen)
    return list(worker.served.service.submit(Request(id="alone", prompt=tuple(ids), params=params)))


def tokens_of(outputs: list[Output], index: int = 0) -> list[int]:
    steps = [output.step for output in outputs if output.step and output.index == index]
    return [token for step in steps for token in step.token_ids]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 1.0, "seed": -7, "top_k": 40, "top_p": 0.5, "min_p": 0.25},
        {
            "temperature": 0.5,
            "seed": 2**31 - 1,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "repetition_penalty": 1.5,
            "logit_bias": {7: 50.0, 9: -100.0},
        },
    ],
)
def test_an_answer_is_what_the_runtime_says(
    worker: Running, stub: Stub, ids: list[int], values: dict[str, Any], stream: bool
) -> None:
    messages = list(stub.Generate(tokens_request(ids, stream=stream, **values)))
    outputs = outputs_of(worker, ids, **values)
    chunks = [message.chunk for message in messages if message.HasField("chunk")]
    assert bool(chunks) == stream
    [complete] = completes(messages).values()
    assert list(complete.output_ids) == tokens_of(outputs)
    if stream:
        assert [t for chunk in chunks for t in chunk.token_ids] == tokens_of(outputs)
        assert sum(chunk.completion_tokens for chunk in chunks) == 12
        assert {chunk.prompt_tokens for chunk in chunks} == {len(ids)}
    assert outputs[-1].end is not None
    numbers = outputs[-1].end.numbers
    assert (complete.finish_reason, complete.prompt_tokens) == ("length", len(ids))
    assert complete.completion_tokens == numbers.tokens == 12
    assert complete.spec_accepted_tokens == sum(numbers.right_at)
    assert complete.spec_draft_tokens == sum(numbers.drafted_at) > 0
    assert complete.WhichOneof("matched_stop") is None


def test_several_answers_end_once_each(worker: Running, stub: Stub, ids: list[int]) -> None:
    values: dict[str, Any] = {"n": 3, "temperature": 1.5, "seed": 3, "max_tokens": 4}
    for stream in (True, False):
        messages = list(stub.Generate(tokens_request(ids, stream=stream, **values)))
        found = {i: list(one.output_ids) for i, one in completes(messages).items()}
        outputs = outputs_of(worker, ids, **values)
        assert found == {index: tokens_of(outputs, index) for index in range(3)}
        assert len({tuple(answer) for answer in found.values()}) == 3


@pytest.mark.parametrize("stream", [True, False])
def test_logprobs_come_with_each_token(
    worker: Running, stub: Stub, ids: list[int], stream: bool
) -> None:
    values: dict[str, Any] = {"logprobs": 2, "prompt_logprobs": 1}
    messages = list(stub.Generate(tokens_request(ids, stream=stream, **values)))
    outputs = outputs_of(worker, ids, **values)
    parts = [m.chunk if stream else m.complete for m in messages if m.HasField("chunk") == stream]
    told = [one for output in outputs for one in output.logprobs or ()]
    ours = [part.output_logprobs for part in parts]
    assert [t for one in ours for t in one.token_ids] == tokens_of(outputs)
    floats = [value for one in ours for value in one.token_logprobs]
    assert floats == pytest.approx([one.logprob for one in told], rel=1e-6)
    tops = [list(top.token_ids) for one in ours for top in one.top_logprobs]
    assert tops == [[token for token, _ in one.top] for one in told]
    assert [part.HasField("input_logprobs") for part in parts] == [True] + [False] * (
        len(parts) - 1
    )
    prompt = parts[0].input_logprobs
    assert list(prompt.token_ids) == ids
    assert [one.HasField("value") for one in prompt.token_logprobs] == [False] + [True] * (
        len(ids) - 1
    )
    assert [len(top.values) for top in prompt.top_logprobs] == [0] + [1] * (len(ids) - 1)


def test_stops_are_told_and_end_the_answer(worker: Running, stub: Stub, ids: list[int]) -> None:
    tokens = tokens_of(outputs_of(worker, ids, max_tokens=40))
    text = worker.served.tokenizer.decode(tokens)
    stop = text[3:6]
    [complete] = completes(
        list(stub.Generate(tokens_request(ids, stop=[stop], max_tokens=40)))
    ).values()
    assert (complete.finish_reason, complete.matched_stop_str) == ("stop", stop)
    assert len(complete.output_ids) < 40
    request = tokens_request(ids, stop_token_ids=[tokens[2]])
    [complete] = completes(list(stub.Generate(request))).values()
    assert (complete.finish_reason, complete.matched_token_id) == ("stop", tokens[2])
    assert list(complete.output_ids) == tokens[: tokens.index(tokens[2]) + 1]


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"choice": pb.ChoiceConstraint(choices=["yes", "no"])}, {"kind": "choice"}),
        ({"regex": "[ab]{3}"}, {"kind": "regex", "source": "[ab]{3}"}),
        ({"grammar": 'root ::= "ab" | "cd"'}, {"kind": "ebnf", "source": 'root ::= "ab" | "cd"'}),
        (
            {"json_schema": '{"enum": [12, 345]}'},
            {"kind": "json_schema", "source": '{"enum": [12, 345]}'},
        ),
        ({"json_object": True}, {"kind": "json_object"}),
    ],
)
def test_constraints_hold(
    worker: Running, stub: Stub, ids: list[int], given: dict[str, Any], same: dict[str, Any]
) -> None:
    request = tokens_request(ids, **given, ignore_eos=False)
    choices = ("yes", "no") if same["kind"] == "choice" else ()
    constraint = Constraint(**same, choices=choices)
    outputs = outputs_of(worker, ids, constraint=constraint, ignore_eos=False)
    [complete] = completes(list(stub.Generate(request))).values()
    assert list(complete.output_ids) == tokens_of(outputs)
    assert list(complete.output_ids) != tokens_of(outputs_of(worker, ids, ignore_eos=False))


def test_a_constraint_waits_for_the_end_of_thinking_unless_told(
    worker: Running, stub: Stub
) -> None:
    ids = worker.served.tokenizer.encode("<think>")
    choice = pb.ChoiceConstraint(choices=["no"])

    def text(**values: Any) -> str:
        [complete] = completes(
            list(stub.Generate(tokens_request(ids, choice=choice, **values)))
        ).values()
        return worker.served.tokenizer.decode(complete.output_ids)

    assert text(grammar_from_first_token=True) == "no"
    assert text() != "no"


def test_what_a_message_does_not_say(worker: Running, stub: Stub, ids: list[int]) -> None:
    """Zeros are off, the temperature is the checkpoint's or one, the length what there is room
    for."""
    room = 9
    prompt = (ids * CONTEXT)[: CONTEXT - room]
    request = pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=prompt),
        sampling_params=pb.SamplingParams(ignore_eos=True, seed=5),
    )
    [complete] = completes(list(stub.Generate(request))).values()
    outputs = outputs_of(worker, prompt, seed=5, temperature=1.0, max_tokens=room)
    assert list(complete.output_ids) == tokens_of(outputs)
    assert len(complete.output_ids) == room
    request.sampling_params.max_tokens = 100_000
    request.sampling_params.min_tokens = 90_000
    assert completes(list(stub.Generate(request)))[0].output_ids == complete.output_ids


def test_a_text_is_read_too(worker: Running, stub: Stub, ids: list[int]) -> None:
    request = tokens_request([])
    request.text = "def read"
    [complete] = completes(list(stub.Generate(request))).values()
    assert list(complete.output_ids) == tokens_of(outputs_of(worker, ids))
