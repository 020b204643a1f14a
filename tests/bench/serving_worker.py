"""A whole worker in a process of its own that also answers without gRPC, to compare.

`python -m tests.bench.serving_worker CONFIG` serves what `fourstep serve` would; a line of stdin is
a request as JSON, which this process's runtime answers with nothing in between. Keeps true: both
ways run on the same engine, and the worker is whole: metrics, logs and interceptors included.
"""

import json
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import uvloop

from runtime.answer import Request
from runtime.request import SamplingParams
from server.cli_serve import open_served
from server.config import LimitsConfig, ListenerConfig, ModelSection, OperationsConfig, ServeConfig
from server.operations.operations import Operations
from server.rpc.served import Served
from server.rpc.worker import Worker
from tests.bench.child import answer


def config_of(text: str) -> ServeConfig:
    """{"checkpoint", "compiler", "slots", "queued"} on a free port."""
    given = json.loads(text)
    return ServeConfig(
        model=ModelSection(
            checkpoint=Path(given["checkpoint"]), compiler=given["compiler"], slots=given["slots"]
        ),
        listeners=(ListenerConfig(address="127.0.0.1:0"),),
        limits=LimitsConfig(queued=given["queued"]),
        operations=OperationsConfig(address=None, log_format="json"),
    )


class Direct:
    """Requests to the runtime of this process."""

    def __init__(self, served: Served) -> None:
        self._served, self._number = served, 0

    def answer(self, line: str) -> dict[str, Any]:
        """`ms` from the text to each output, and the tokens."""
        given = json.loads(line)
        self._number += 1
        start, ms, tokens = time.perf_counter(), list[float](), list[int]()
        request = Request(
            id=f"direct-{self._number}",
            prompt=self._served.text(given["text"]).ids,
            params=SamplingParams(**given["sampling"]),
            salt=f"direct-{self._number}",
        )
        for output in self._served.service.submit(request):
            ms.append(1e3 * (time.perf_counter() - start))
            tokens.extend(output.step.token_ids if output.step else ())
        return {"ms": ms, "tokens": tokens}


def main() -> None:
    config, address = config_of(sys.argv[1]), Future[str]()
    operations = Operations(config.operations)
    served = open_served(config, observer=operations.metrics)

    async def serve() -> None:
        worker = Worker(served, config, interceptors=operations.interceptors)
        await worker.start(signals=())
        address.set_result(worker.listeners[0].address)
        await worker.run()

    def run() -> None:
        try:
            uvloop.run(serve())
        except BaseException as error:
            if address.done():
                raise
            address.set_exception(error)  # whoever waits must know

    threading.Thread(target=run, daemon=True).start()
    answer(Direct(served).answer, address=address.result())


if __name__ == "__main__":
    main()
