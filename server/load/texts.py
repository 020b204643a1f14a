"""Prompts of any length, cut from one long text at random places.

Knows how to have a worker tokenize. Does not know plans. Keeps true: a prompt has exactly the
tokens that it is to have, begins as the worker begins its own, and two prompts rarely share more
than that beginning; real text, so that drafts are as good as they are in use.
"""

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from fourstep.v1 import control_pb2, inference_pb2_grpc
from fourstep.v1 import inference_pb2 as pb

from server.client.connection import Metadata
from server.load.plan import Job

MOST = 200_000  # characters that are worth tokenizing
PIECE = 1024  # characters a call, less where the context is shorter


@dataclass(frozen=True, kw_only=True)
class Texts:
    """`ids`: the text's tokens; `bos`: what every prompt begins with."""

    ids: tuple[int, ...]
    bos: int

    @classmethod
    async def read(
        cls,
        text: str,
        model: control_pb2.GetModelResponse,
        channel: grpc.aio.Channel,
        metadata: Metadata,
    ) -> "Texts":
        """Tokenized by the worker, piece by piece. Raises grpc.aio.AioRpcError."""
        stub = inference_pb2_grpc.InferenceStub(channel)
        # No character is more than four tokens of a byte-level vocabulary.
        size = max(1, min(PIECE, model.context // 4 - 1))
        ids: list[int] = []
        for start in range(0, min(len(text), MOST), size):
            prompt = pb.Prompt(text=text[start : start + size])
            answer = await stub.Tokenize(pb.TokenizeRequest(prompt=prompt), metadata=metadata)
            found: Sequence[int] = answer.token_ids
            ids.extend(found[1:] if found[:1] == [model.bos_token_id] else found)
        return cls(ids=tuple(ids), bos=model.bos_token_id)

    def prompt(self, job: Job) -> list[int]:
        """Goes on at the text's beginning where it ends."""
        start, wanted = int(job.place * len(self.ids)), job.prompt_tokens - 1
        taken = [self.ids[(start + i) % len(self.ids)] for i in range(wanted)]
        return [self.bos, *taken]


def default_text() -> str:
    """Source code of Python's own library, which every machine with this program has."""
    names = ("argparse", "ast", "configparser", "inspect", "pathlib", "tarfile", "zipfile")
    folder = Path(sysconfig.get_path("stdlib"))
    return "\n".join(
        (folder / f"{name}.py").read_text(encoding="utf-8")
        for name in names
        if (folder / f"{name}.py").is_file()
    )
