"""A gateway that does not see the worker's files: the worker sends it the tokenizer."""

from pathlib import Path

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from server.options import NANO
from server.rpc.served import Served
from server.vllm import about
from server.vllm.files import Card
from tests.gateway.stack import Stack, gateway
from tests.server.vllm.calling import calling


def test_the_tokenizer_comes_from_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = about.model_info

    def elsewhere(served: Served, card: Card) -> pb.GetModelInfoResponse:
        info = true(served, card)
        info.model_path = info.tokenizer_path = "nobody/nothing"
        return info

    monkeypatch.setattr(about, "model_info", elsewhere)
    with calling(NANO) as (worker, _):
        addresses = [worker.worker.listeners[1].address]
        with gateway(addresses, tmp_path / "gateway.log") as port:
            [choice] = Stack(port=port).chat("Sort: tiger apple moon").choices
    assert choice.message.content.split() == ["apple", "moon", "tiger"]
