"""The way into service: nobody is answered before every slot has decoded once."""

from pathlib import Path

import pytest

from server.config import LimitsConfig
from server.rpc import worker as module
from server.rpc.listener import Listener
from server.rpc.served import Served
from server.rpc.warming import warm
from tests.server.rpc.working import running, text_request
from tests.server.tiny_checkpoint import write_checkpoint


def test_the_engine_has_run_before_a_listener_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, start = list[str](), Listener.start

    async def warmed(served: Served, *, answers: int) -> None:
        await warm(served, answers=answers)
        order.append("warm")

    async def started(self: Listener) -> None:
        order.append("start")
        await start(self)

    monkeypatch.setattr(module, "warm", warmed)
    monkeypatch.setattr(Listener, "start", started)
    with running(write_checkpoint(tmp_path / "tiny")) as worker:
        assert order == ["warm", "start"]
        steps = worker.served.service.engine.steps
        assert sum(count for (batch, _, _), count in steps.items() if batch == 2) > 0
        assert not worker.served._open
        assert worker.served.service.load["blocks_used"] == 0


def test_a_queue_shorter_than_the_slots_is_no_obstacle(tmp_path: Path) -> None:
    few = LimitsConfig(queued=1)
    folder = write_checkpoint(tmp_path / "tiny", leave_out="chat_template.jinja")
    with running(folder, limits=few) as worker:
        assert list(worker.inference.Generate(text_request()))[-1].HasField("end")
