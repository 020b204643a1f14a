"""The cases of gRPC's interoperability tests against fourstep.v1, by two implementations of gRPC.

Case names are those of the gRPC project. Keeps true: whatever a call ends with, both clients see
the same status, and the worker is idle behind it.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from runtime.request import SamplingParams
from tests.server.interop.calls import Call, Result, with_grpcio
from tests.server.interop.node import with_node
from tests.server.rpc.test_inference import alone, idle
from tests.server.rpc.working import CONTEXT, Running, running
from tests.server.tiny_checkpoint import write_checkpoint

LARGE = 271_828  # bytes, as in the cases of the same name
ODD_ID = "\t\nwith whitespace\r\nand Unicode: \u263a and \U0001f608\t\n"
SEED = 2**63 + 5  # not a number that JavaScript has


def generate(tokens: int = 12, **fields: Any) -> dict[str, Any]:
    sampling = {"max_tokens": tokens, "ignore_eos": True, **fields.pop("sampling", {})}
    return {"prompt": {"text": "def read"}, "sampling": sampling, **fields}


LONG = generate(240)
DRAWN = generate(sampling={"temperature": 0.9, "seed": str(SEED)})
CASES = {
    "empty_unary": [Call(method="GetLoad")],
    "large_unary": [Call(method="Tokenize", request={"prompt": {"text": "z" * LARGE}})],
    "client_compressed_unary": [
        Call(method="Tokenize", request={"prompt": {"text": "z" * LARGE}}, gzip=True)
    ],
    "server_streaming": [Call(request=DRAWN)],
    "large_stream": [Call(request=generate(60, sampling={"logprobs": 20, "prompt_logprobs": 20}))],
    "cancel_after_begin": [Call(request=LONG, cancel_after=0)],
    "cancel_after_first_response": [Call(request=LONG, cancel_after=1)],
    "timeout_on_sleeping_server": [Call(request=LONG, deadline_s=0.05)],
    "unimplemented_method": [Call(request=LONG, path="/fourstep.v1.Inference/Nothing")],
    "unimplemented_service": [Call(request=LONG, path="/fourstep.v1.Nothing/Generate")],
    "status_code_and_message": [Call(request=generate(sampling={"top_p": 2}))],
    "special_status_message": [
        Call(
            request=generate(request_id=ODD_ID),
            during=Call(request=LONG | {"request_id": ODD_ID}),
        )
    ],
    "custom_metadata": [
        Call(
            request=generate(),
            metadata=(
                ("x-grpc-test-echo-initial", "test_initial_metadata_value"),
                ("x-grpc-test-echo-trailing-bin", "\u263a"),
                ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ),
        )
    ],
    "rpc_soak": [Call(request=DRAWN)] * 5,
}
CLIENTS = {"grpcio": with_grpcio, "grpc-js": with_node}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(write_checkpoint(tmp_path_factory.mktemp("interop") / "tiny")) as made:
        yield made


@pytest.fixture(scope="module", params=CLIENTS)
def results(worker: Running, request: pytest.FixtureRequest) -> dict[str, list[Result]]:
    """Everything that one of the clients was told, by case."""
    calls = [call for calls in CASES.values() for call in calls]
    told = iter(CLIENTS[request.param](worker.worker.listeners[0].address, calls))
    found = {name: [next(told) for _ in calls] for name, calls in CASES.items()}
    idle(worker)
    return found


def only(results: dict[str, list[Result]], name: str) -> Result:
    (result,) = results[name]
    return result


def ids(result: Result) -> list[int]:
    return [token for message in result.messages for token in message["token_ids"]]


def test_empty_unary(results: dict[str, list[Result]]) -> None:
    result = only(results, "empty_unary")
    assert (result.code, result.messages[0]["slots"]) == ("OK", 2)


@pytest.mark.parametrize("name", ["large_unary", "client_compressed_unary"])
def test_large_unary(worker: Running, results: dict[str, list[Result]], name: str) -> None:
    """The answer tells how much came."""
    result = only(results, name)
    count = len(worker.served.tokenizer.encode("z" * LARGE))
    words = f"{count} prompt tokens leave no room in a context of {CONTEXT}"
    assert (result.code, result.details) == ("INVALID_ARGUMENT", words)


@pytest.fixture(scope="module")
def drawn(worker: Running) -> tuple[list[int], str]:
    """What the runtime says to DRAWN."""
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.9, seed=SEED)
    return alone(worker, "def read", params)


def check_drawn(result: Result, drawn: tuple[list[int], str]) -> None:
    text = "".join(message["text"] for message in result.messages)
    assert result.code == "OK"
    assert (ids(result), text) == drawn
    assert result.messages[-1]["end"]["usage"]["seed"] == str(SEED)


def test_server_streaming(results: dict[str, list[Result]], drawn: tuple[list[int], str]) -> None:
    check_drawn(only(results, "server_streaming"), drawn)


def test_large_stream(results: dict[str, list[Result]]) -> None:
    result = only(results, "large_stream")
    assert (result.code, len(ids(result))) == ("OK", 60)
    assert all(
        [one["token_id"] for one in message["logprobs"]] == message["token_ids"]
        and all(len(one["top"]) == 20 for one in message["logprobs"])
        for message in result.messages
    )


def test_cancel_after_begin(results: dict[str, list[Result]]) -> None:
    result = only(results, "cancel_after_begin")
    assert (result.code, result.messages) == ("CANCELLED", [])


def test_cancel_after_first_response(results: dict[str, list[Result]]) -> None:
    result = only(results, "cancel_after_first_response")
    assert result.code == "CANCELLED"
    assert 1 <= len(ids(result)) < 240


def test_timeout_on_sleeping_server(results: dict[str, list[Result]]) -> None:
    result = only(results, "timeout_on_sleeping_server")
    assert result.code == "DEADLINE_EXCEEDED"
    assert len(ids(result)) < 240


@pytest.mark.parametrize("name", ["unimplemented_method", "unimplemented_service"])
def test_unimplemented(results: dict[str, list[Result]], name: str) -> None:
    assert only(results, name).code == "UNIMPLEMENTED"


def test_status_code_and_message(results: dict[str, list[Result]]) -> None:
    result = only(results, "status_code_and_message")
    assert (result.code, result.details) == ("INVALID_ARGUMENT", "top_p = 2.0: must be in (0, 1]")


def test_special_status_message(results: dict[str, list[Result]]) -> None:
    result = only(results, "special_status_message")
    assert result.code == "INVALID_ARGUMENT"
    assert result.details == f"request id {ODD_ID!r} is in use"


def test_custom_metadata(results: dict[str, list[Result]]) -> None:
    result = only(results, "custom_metadata")
    assert (result.code, len(ids(result))) == ("OK", 12)


def test_rpc_and_channel_soak(
    results: dict[str, list[Result]], drawn: tuple[list[int], str]
) -> None:
    """A channel for each call."""
    for result in results["rpc_soak"]:
        check_drawn(result, drawn)
