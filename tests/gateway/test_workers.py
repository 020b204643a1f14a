"""Workers behind a gateway that come, go, fail and are full; clients that leave; exact answers."""

import http.client
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import openai
import pytest
from fourstep.v1 import control_pb2
from fourstep.v1 import inference_pb2 as fourstep
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from typer.testing import CliRunner

from server.cli_commands import app
from tests.gateway.stack import MODEL, QUEUED, SLOTS, Stack, Worker, stacked, until

LONG = 900  # tokens: what does not end by itself for a while
PROMPT = "def read_lines(path):"
BOS = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with stacked(tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture
def stack(shared: Stack) -> Stack:
    shared.wait()
    return shared


def answered(stack: Stack, count: int) -> None:
    """So many questions are answered well, one after the other."""
    for _ in range(count):
        [choice] = stack.chat("hello", max_tokens=8).choices
        assert choice.finish_reason in ("stop", "length")


def cancelled(stack: Stack) -> float:
    """Answers of both workers that ended because nobody wanted them any more."""
    name = "fourstep_answers_total"
    return sum(worker.metric(name, reason="cancelled") for worker in stack.workers)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_slot(stack: Stack, stream: bool) -> None:
    before = cancelled(stack)
    connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=60)
    question = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": LONG,
        "ignore_eos": True,
        "stream": stream,
    }
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(question), headers)
    stack.busy()
    if stream:
        assert connection.getresponse().read(64)
    connection.close()
    until(lambda: not any(worker.answers for worker in stack.workers))
    assert cancelled(stack) == before + 1


def test_a_worker_that_drains_finishes_and_the_other_takes_over(stack: Stack) -> None:
    chunks = stack.chat("hello", max_tokens=120, stream=True, extra_body={"ignore_eos": True})
    next(chunks)
    worker = stack.busy()
    worker.control.Drain(control_pb2.DrainRequest(timeout_seconds=60))
    answered(stack, 10)
    *_, last = chunks
    assert last.choices[0].finish_reason == "length"
    assert worker.process.wait(60) == 0
    answered(stack, 3)
    serves_again(stack, worker)


def serves_again(stack: Stack, worker: Worker) -> None:
    """A new process at the old addresses is given requests."""
    assert worker.process.wait(60) is not None
    worker.start()
    worker.wait()
    until(lambda: stack.healthy == 2, worker.process)
    before = worker.metric("fourstep_tokens_total")

    def served() -> bool:
        answered(stack, 1)
        return worker.metric("fourstep_tokens_total") > before

    until(served, worker.process)


def test_a_worker_that_is_killed_and_comes_back(stack: Stack) -> None:
    chunks = stack.chat("hello", max_tokens=LONG, stream=True, extra_body={"ignore_eos": True})
    next(chunks)
    worker = stack.busy()
    worker.process.kill()
    with pytest.raises(openai.APIError):
        list(chunks)
    answered(stack, 4)
    serves_again(stack, worker)


@contextmanager
def full(*workers: Worker) -> Iterator[None]:
    """They have no place for another answer."""
    calls: list[Any] = []
    for worker in workers:
        for count in range(1, 1 + SLOTS + QUEUED):
            calls.append(worker.inference.Generate(long_request()))
            until(lambda count=count, worker=worker: worker.answers == count)
    yield
    for call in calls:
        call.cancel()


def long_request() -> fourstep.GenerateRequest:
    sampling = fourstep.SamplingParams(max_tokens=LONG, ignore_eos=True)
    return fourstep.GenerateRequest(prompt=fourstep.Prompt(text=PROMPT), sampling=sampling)


def test_what_a_full_worker_refuses_goes_to_the_other(stack: Stack) -> None:
    one = stack.workers[0]
    before = refused(one)
    with full(one):
        answered(stack, 6)
        assert refused(one) > before


def test_where_all_are_full_the_client_is_told(stack: Stack) -> None:
    with full(*stack.workers), pytest.raises(openai.RateLimitError):
        stack.chat("hello")


def refused(worker: Worker) -> float:
    return worker.metric("fourstep_requests_refused_total", reason="queue_full")


def said(*arguments: str) -> tuple[list[int], str, dict[str, Any]]:
    """`fourstep generate`: ids, text and the closing object."""
    command = ["generate", "--json", "--compiler", "eager", *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    *steps, done = [json.loads(line) for line in result.stdout.splitlines()]
    ids = [token for step in steps for token in step["token_ids"]]
    return ids, "".join(step["text"] for step in steps), done


class Noise:
    """Requests by both protocols on all workers, each left or cancelled at a moment of chance."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.count, self._random = 0, random.Random(seed)
        self._codes: set[grpc.StatusCode] = set()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._make, args=(worker,)) for worker in stack.workers
        ]

    def __enter__(self) -> "Noise":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert self._codes <= {grpc.StatusCode.CANCELLED}

    def _make(self, worker: Worker) -> None:
        while not self._over.is_set():
            name = f"noise{self._random.random()}"
            make = self._random.choice((self._fourstep, self._streamed, self._whole))
            try:
                make(worker, name)
            except grpc.RpcError as error:
                self._codes.add(error.code())
            self.count += 1

    def _fourstep(self, worker: Worker, name: str) -> None:
        request = long_request()
        request.request_id = name
        self._hear(worker.inference.Generate(request), worker, name)

    def _streamed(self, worker: Worker, name: str) -> None:
        self._hear(worker.vllm.Generate(long_vllm_request(name, stream=True)), worker, name)

    def _hear(self, calls: Any, worker: Worker, name: str) -> None:
        """Some messages; then leave, or abort and hear it."""
        for _ in range(self._random.randrange(1, 8)):
            next(calls)
        if self._random.random() < 0.5:
            worker.vllm.Abort(vllm.AbortRequest(request_ids=[name, name]))
            list(calls)
        calls.cancel()

    def _whole(self, worker: Worker, name: str) -> None:
        call = worker.vllm.Generate(long_vllm_request(name, stream=False))
        self._over.wait(self._random.random() / 2)
        call.cancel()


def long_vllm_request(name: str, *, stream: bool) -> vllm.GenerateRequest:
    params = vllm.SamplingParams(max_tokens=LONG, ignore_eos=True, temperature=1.0)
    return vllm.GenerateRequest(request_id=name, text=PROMPT, stream=stream, sampling_params=params)


def test_every_way_gives_what_generate_gives(stack: Stack) -> None:
    sampling = {"temperature": 0.75, "seed": 7, "top_k": 50, "max_tokens": 24}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in sampling.items()]
    ids, text, _ = said("--prompt", PROMPT, *flags)
    with Noise(stack, seed=1) as noise:
        for worker in stack.workers:
            assert by_fourstep(worker, sampling) == (ids, text)
            assert by_vllm(worker, sampling) == ids
        for stream in (True, False):
            assert by_gateway(stack, sampling, stream=stream) == text
        until(lambda: noise.count > 10)
    stack.wait()


def by_fourstep(worker: Worker, sampling: dict[str, Any]) -> tuple[list[int], str]:
    request = fourstep.GenerateRequest(
        prompt=fourstep.Prompt(text=PROMPT), sampling=fourstep.SamplingParams(**sampling)
    )
    messages = list(worker.inference.Generate(request))
    ids = [token for message in messages for token in message.token_ids]
    return ids, "".join(message.text for message in messages)


def by_vllm(worker: Worker, sampling: dict[str, Any]) -> list[int]:
    params = vllm.SamplingParams(**sampling, skip_special_tokens=True)
    request = vllm.GenerateRequest(text=PROMPT, sampling_params=params, stream=True)
    *chunks, last = worker.vllm.Generate(request)
    ids = [token for message in chunks for token in message.chunk.token_ids]
    assert list(last.complete.output_ids) == ids
    return ids


def by_gateway(stack: Stack, sampling: dict[str, Any], *, stream: bool) -> str:
    own = {"top_k": sampling["top_k"]}
    options: dict[str, Any] = {k: v for k, v in sampling.items() if k not in own}
    # The gateway encodes by tokenizer.json alone, which puts nothing before a text.
    found = stack.client.completions.create(
        model=MODEL, prompt=BOS + PROMPT, stream=stream, extra_body=own, **options
    )
    parts: Any = found if stream else [found]
    return "".join(choice.text for part in parts for choice in part.choices)


def test_a_chat_by_the_gateway_is_that_of_generate(stack: Stack, tmp_path: Any) -> None:
    question = {"role": "user", "content": "Sort: river apple stone cloud"}
    (tmp_path / "chat.json").write_text(json.dumps([question]))
    *_, done = said("--chat", str(tmp_path / "chat.json"), "--temperature=1.5", "--seed=3")
    with Noise(stack, seed=2):
        whole = stack.chat(question["content"], temperature=1.5, seed=3, max_tokens=256)
    message = whole.choices[0].message
    assert (message.content, message.reasoning_content) == (done["content"], done["reasoning"])
