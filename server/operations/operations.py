"""All that operators see of one worker, from its configuration.

Joins logs, metrics, probes and traces. Does not know what any of them says. Keeps true: it is there
before the model is loaded and until after the engine is gone, so a start that takes minutes and an
end that went wrong are seen too; ready is what health says.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import grpc
from prometheus_client import Counter, Gauge, disable_created_metrics
from prometheus_client.process_collector import ProcessCollector

from runtime.metrics import Metrics
from server.config import OperationsConfig, host_of
from server.operations.endpoint import OperationsServer
from server.operations.interceptor import Calls
from server.operations.logs import logging_to
from server.operations.traces import Traces
from server.rpc.served import Served


class Operations:
    """A context manager. `metrics` is to be the observer of the service. Raises ValueError, and
    OSError where the address is taken."""

    def __init__(self, config: OperationsConfig) -> None:
        disable_created_metrics()  # a series beside each counter and histogram that nobody asks for
        self.metrics = Metrics()
        self._served: Served | None = None
        registry = self.metrics.registry
        ProcessCollector(registry=registry)
        lost = Counter("fourstep_log_lines_lost", "Lines that nobody read.", registry=registry)
        serving = Gauge("fourstep_serving", "1: health says SERVING.", registry=registry)
        serving.set_function(lambda: float(self.ready()))
        self._worker = Gauge(
            *("fourstep_worker", "What is served, and by what; always 1."),
            ["model", "artifact", "compiler", "precision", "device"],
            registry=registry,
        )
        with ExitStack() as stack:
            stack.enter_context(logging_to(sys.stderr, config.log_format, lost=lost.inc))
            traces = None if config.otlp is None else Traces(config.otlp)
            if traces is not None:
                stack.callback(traces.close)
            self._calls = Calls(registry, traces=traces)
            stack.callback(self._calls.close)
            self.address: str | None = None  # with the port that was found
            if config.address is not None:
                server = OperationsServer(
                    config.address, metrics=self.metrics.text, ready=self.ready
                )
                stack.enter_context(server)
                self.address = f"{host_of(config.address)}:{server.port}"
            self._stack = stack.pop_all()

    def interceptors(self, listener: Callable[[], str]) -> Sequence[grpc.aio.ServerInterceptor]:
        """See Worker."""
        return self._calls.interceptors(listener)

    def serving(self, served: Served) -> None:
        """The worker has begun to serve."""
        who = served.identity
        labels = (who.name, who.artifact or "", who.compiler, who.precision, who.device)
        self._worker.labels(*labels).set(1)
        self._served = served

    def ready(self) -> bool:
        return self._served is not None and not self._served.leaving

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
