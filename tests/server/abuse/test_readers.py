"""Clients that read slowly, leave early, or send more than may be sent.

Keeps true: nobody waits for them, what they leave behind is freed, and there is no more memory in
use after two thousand of them than after a few.
"""

import random
import time
from typing import Any

import grpc
import pytest
from fourstep.v1 import inference_pb2 as pb
from fourstep.v1 import inference_pb2_grpc
from h2.events import DataReceived

from tests.server.abuse.conftest import answer
from tests.server.abuse.process import WorkerProcess
from tests.server.abuse.wire import Wire
from tests.server.rpc.working import text_request, until

pytestmark = pytest.mark.usefixtures("unharmed")
REQUEST = text_request().SerializeToString()
# More than grpc takes from us before its client reads.
LONG = pb.GenerateRequest(
    prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[1, 2, 3, 4] * 50)),
    sampling=pb.SamplingParams(
        max_tokens=40, n=2, ignore_eos=True, logprobs=20, prompt_logprobs=20
    ),
).SerializeToString()
GROWTH_MIB = 12.0


def until_idle(process: WorkerProcess, wires: list[Wire]) -> None:
    """Pings are answered meanwhile, without which the server hangs up after 80 seconds."""

    def idle() -> bool:
        for wire in wires:
            wire.attend()
        return process.idle()

    until(idle, seconds=120)


def test_readers_that_do_not_read(process: WorkerProcess, tokens: list[int]) -> None:
    """Their answers are made, kept and given up; others are served meanwhile."""
    before = process.at_rest()
    wires = [Wire(process.addresses[0], window=0) for _ in range(3)]
    for wire in wires:
        wire.call(LONG)
    until(lambda: process.measure().open == len(wires))
    assert answer(process) == tokens
    until_idle(process, wires)  # who does not read holds no slot
    stalled = process.measure()
    assert stalled.open == len(wires)
    assert stalled.memory_mib < before.memory_mib + GROWTH_MIB
    for wire in wires:
        assert not wire.of(DataReceived)
        wire.socket.close()


def test_a_reader_that_comes_back_misses_nothing(process: WorkerProcess) -> None:
    prompt = pb.GenerateRequest.FromString(LONG)
    whole = [t for message in process.inference.Generate(prompt) for t in message.token_ids]
    with Wire(process.addresses[0], window=0) as wire:
        stream = wire.call(LONG)
        until(lambda: process.measure().open == 1)
        until_idle(process, [wire])
        wire.h2.increment_flow_control_window(2**24, stream)
        wire.h2.increment_flow_control_window(2**24)
        wire.flush()
        assert wire.status(stream) == 0
        assert wire.tokens(stream) == whole


def leave(process: WorkerProcess, chance: random.Random) -> None:
    """Connect, ask, and go away at some moment, in one of several ways."""
    with Wire(process.addresses[0]) as wire:
        stream = wire.call(REQUEST)
        time.sleep(chance.choice((0, 0, 0, 0.002)))
        match chance.randrange(50):
            case 0:
                wire.read(lambda: bool(wire.of(DataReceived)))
            case 1:
                wire.h2.reset_stream(stream)
                wire.flush()
            case 2:
                wire.h2.close_connection()
                wire.flush()


def test_two_thousand_who_connect_and_leave(process: WorkerProcess) -> None:
    chance = random.Random(1)
    for _ in range(300):
        leave(process, chance)
    before = process.at_rest()
    for _ in range(1700):
        leave(process, chance)
    after = process.at_rest()
    assert after.memory_mib < before.memory_mib + GROWTH_MIB
    assert after.descriptors <= before.descriptors


def refused(
    process: WorkerProcess,
    request: pb.GenerateRequest,
    metadata: tuple[tuple[str, str], ...] = (),
    **options: Any,
) -> str:
    address, large = process.addresses[0], [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options=large, **options) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(request, metadata=metadata, timeout=60))
    return caught.value.code().name


def test_messages_that_are_too_large(process: WorkerProcess) -> None:
    """As they come, and once they are unpacked."""
    large = text_request("z" * (17 * 2**20))
    before = process.at_rest()
    assert refused(process, large) == "RESOURCE_EXHAUSTED"
    assert refused(process, large, compression=grpc.Compression.Gzip) == "RESOURCE_EXHAUSTED"
    assert process.at_rest().memory_mib < before.memory_mib + GROWTH_MIB


def test_metadata_that_is_too_large(process: WorkerProcess) -> None:
    metadata = tuple((f"x-{i}", "v" * 4000) for i in range(20))
    assert refused(process, text_request(), metadata) == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    "values",
    [
        {"stop": ["x" * 10**6]},
        {"stop": ["x"] * 10**5},
        {"bad_words": ["x"] * 10**5},
        {"stop_token_ids": list(range(300)) * 100},
        {"logit_bias": dict.fromkeys(range(10**4), 1.0)},
        {"constraint": pb.Constraint(regex="a" * 10**6)},
        {"constraint": pb.Constraint(choice=pb.Choices(texts=["a"] * 10**5))},
        {"constraint": pb.Constraint(json_schema='{"enum": ' + "[" * 30000 + "]" * 30000 + "}")},
        {"n": 2**32 - 1},
    ],
    ids=lambda values: next(iter(values)),
)
def test_parameters_that_are_too_many(process: WorkerProcess, values: dict[str, Any]) -> None:
    request = text_request(**values)
    assert refused(process, request) == "INVALID_ARGUMENT"


def test_a_prompt_that_is_too_long_and_a_tool_that_has_no_end(process: WorkerProcess) -> None:
    assert refused(process, text_request("def read " * 10**5)) == "INVALID_ARGUMENT"
    request = text_request()
    said = pb.Message(role="user", parts=[pb.Part(text="again")])
    request.prompt.chat.CopyFrom(pb.Chat(messages=[said], tools_json=["[" * 10**5 + "]" * 10**5]))
    assert refused(process, request) == "INVALID_ARGUMENT"
