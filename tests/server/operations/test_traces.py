"""Spans as a collector gets them, over OTLP, and what happens when there is no collector."""

import logging
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from fourstep.v1 import inference_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from server.config import LimitsConfig
from server.operations.traces import Traces
from server.rpc.limits import Metadata
from tests.server.operations.watched import GENERATE, Lines, Watched, watched
from tests.server.rpc.working import until

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
LEAVING = 20  # callers that leave while a message is being written, each a little differently


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """`spans`: all that came; `who`: the names of the services that sent them."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.who: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.who.add(attributes["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    found = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(found, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield found, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


def ask(server: Watched, wish: str, parent: str | None = None) -> None:
    metadata = () if parent is None else (("traceparent", parent),)
    call = server.inference.Generate(pb.GenerateRequest(request_id=wish), metadata=metadata)
    if wish == "flood":
        next(call)
        call.cancel()
        until(lambda: server.open(GENERATE) == 0)
    elif wish == "answer":
        assert len(list(call)) == 2
    else:
        with pytest.raises(grpc.RpcError):
            list(call)


def test_each_generate_is_a_span(lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as (collector, address):
        traces = Traces(address)
        with watched(traces) as server:
            ask(server, "answer", f"00-{TRACE}-{SPAN}-01")
            ask(server, "refuse")
            for _ in range(LEAVING):
                ask(server, "flood")
            server.inference.Tokenize(pb.TokenizeRequest(prompt=pb.Prompt(text="secret")))
        traces.close()
    assert collector.who == {"fourstep"}
    answered, refused, *left = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)
    assert len(left) == server.ended(GENERATE, "CANCELLED") == LEAVING
    assert {span.name for span in collector.spans} == {f"/{GENERATE}"}
    assert (answered.trace_id.hex(), answered.parent_span_id.hex()) == (TRACE, SPAN)
    assert refused.trace_id.hex() != TRACE
    assert codes(refused) == [grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]]
    assert "secret" not in str(collector.spans)
    # A line leads to its span.
    told = [line["traceparent"].split("-")[1:3] for line in lines.found[:2]]
    assert told == [[span.trace_id.hex(), span.span_id.hex()] for span in (answered, refused)]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_who_is_sent_away_is_a_span_and_a_call_as_well() -> None:
    """With the status that it gets elsewhere."""
    with collecting() as (collector, address):
        traces = Traces(address)
        with watched(traces, inner=[Metadata(LimitsConfig(metadata_kib=4))]) as server:
            call = server.inference.Generate(pb.GenerateRequest(), metadata=[("x", "y" * 5000)])
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            until(lambda: server.ended(GENERATE, "RESOURCE_EXHAUSTED") == 1)
        traces.close()
    (span,) = collector.spans
    assert codes(span) == [grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]]


def codes(span: Any) -> list[int]:
    return [a.value.int_value for a in span.attributes if a.key == "rpc.grpc.status_code"]


def test_no_collector_is_no_trouble() -> None:
    traces = Traces("http://127.0.0.1:1")
    with watched(traces) as server:
        ask(server, "answer")
    began = time.monotonic()
    traces.close()
    assert time.monotonic() - began < 60  # a guard: an end of service must not hang


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(ValueError, match=r"operations\.otlp: .*'\.\[otel\]'"):
        Traces("http://127.0.0.1:4317")


def test_an_address_is_a_url() -> None:
    with pytest.raises(ValueError, match=r"operations\.otlp: 'collector:4317' must be http"):
        Traces("collector:4317")
