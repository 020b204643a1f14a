"""OpenTelemetry: a span for each Generate, sent to a collector by OTLP over gRPC.

Knows the extra `otel`, and imports it only where traces are asked for. Does not know what a span is
made of: that is the instrumentation's. Keeps true: a collector that is not there costs spans, never
a request, and an end of service at most a few seconds.
"""

from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import grpc

EXPORT_S = 2.0  # for one batch of spans


class Traces:
    """`otlp`: the collector, as http://HOST:4317 or https://HOST:4317. Raises ValueError."""

    def __init__(self, otlp: str) -> None:
        if not otlp.startswith(("http://", "https://")):
            raise ValueError(f"operations.otlp: {otlp!r} must be http://HOST:PORT or https://")
        if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
            raise ValueError(
                "operations.otlp: traces need an extra: pip install -e '.[otel]' in the clone"
            )
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        who = {"service.name": "fourstep", "service.version": version("fourstep")}
        self._provider = TracerProvider(resource=Resource.create(who), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=otlp, timeout=EXPORT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    def interceptor(self) -> grpc.aio.ServerInterceptor:
        """Of Generate alone: the rest is who polls, and health's streams are not for it."""
        from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters

        generate: Any = filters.method_name("Generate")
        return aio_server_interceptor(tracer_provider=self._provider, filter_=generate)

    def traceparent(self) -> str:
        """Of the span that this is in; "" outside of one."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier.get("traceparent", "")

    def close(self) -> None:
        """What was not sent yet is sent, or lost."""
        self._provider.shutdown()
