"""What the soak asks for: requests of every kind, and what each one's answers have to be.

Knows messages of fourstep.v1. Does not know who asks when. Keeps true: an ask made again is the
same request, whatever else of it may differ without changing an answer (`variation`).
"""

import random
from dataclasses import dataclass
from typing import Any

from fourstep.v1 import inference_pb2 as pb

MARK = "qzxv"  # in every prompt, so that a log that quotes one is found
_BEGINNING = f"{MARK} def read_lines(path):\n    " + '"""Lines of a file."""\n    ' * 8
_PROMPTS = (
    f"{MARK} def read",
    f"{MARK} import os\n\n\n",
    _BEGINNING + "return",
    _BEGINNING + "with open(path) as file:",
    f"{MARK} " + "for each in range(9):\n    " * 20,
)
_SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
_CONSTRAINTS: tuple[dict[str, Any], ...] = (
    {"regex": "[a-e ]+"},
    {"json_schema": _SCHEMA},
    {"choice": pb.Choices(texts=["yes", "no", "neither of them"])},
    {"ebnf": 'start: "a" start | "b"'},
)
Answer = tuple[list[int], str, list[tuple[int, float]]]  # tokens, text, and logprobs if asked for


@dataclass(frozen=True, kw_only=True)
class Ask:
    request: pb.GenerateRequest

    @property
    def n(self) -> int:
        return max(1, self.request.sampling.n)

    def alone(self) -> pb.GenerateRequest:
        """To be answered in the plainest way: no drafts, and no prefix that others left."""
        made = pb.GenerateRequest.FromString(self.request.SerializeToString())
        made.draft_tokens, made.cache_salt = 0, f"alone {made.sampling.seed}"
        return made

    def variation(self, chance: random.Random, request_id: str) -> pb.GenerateRequest:
        """The same answers, on other ways."""
        made = pb.GenerateRequest.FromString(self.request.SerializeToString())
        made.request_id, made.priority = request_id, chance.randrange(-2, 3)
        made.token_by_token = chance.random() < 0.2
        if chance.random() < 0.5:
            made.draft_tokens = chance.randrange(4)
        if chance.random() < 0.3:
            made.cache_salt = chance.choice(("a", "b"))
        return made


def asks(chance: random.Random, count: int, most_tokens: int) -> list[Ask]:
    return [Ask(request=_request(chance, most_tokens)) for _ in range(count)]


def _request(chance: random.Random, most_tokens: int) -> pb.GenerateRequest:
    values: dict[str, Any] = {
        "max_tokens": chance.randint(1, most_tokens),
        "seed": chance.getrandbits(64),
    }
    if chance.random() < 0.7:
        values |= {
            "temperature": chance.choice((0.5, 1.0, 1.5)),
            "top_p": chance.choice((0.9, 1.0)),
        }
    if chance.random() < 0.3:
        values |= {"n": chance.randint(2, 3)}
    if chance.random() < 0.4:
        values |= {"logprobs": chance.randrange(6)}
    if chance.random() < 0.3:
        values |= {"presence_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": {7: -2.0}}
    if chance.random() < 0.3:
        values |= {"stop": ["\n\n", "e"], "include_stop_str": chance.random() < 0.5}
    if chance.random() < 0.35:
        values |= {
            "constraint": pb.Constraint(after_reasoning=False, **chance.choice(_CONSTRAINTS))
        }
    else:
        values |= {"ignore_eos": True}
    prompt = pb.Prompt(text=chance.choice(_PROMPTS))
    return pb.GenerateRequest(prompt=prompt, sampling=pb.SamplingParams(**values))


def answers_of(messages: list[pb.GenerateResponse], n: int) -> list[Answer]:
    """The answers that messages carry, by index. AssertionError if one goes on behind its end."""
    over, found = set[int](), list[Answer]([([], "", []) for _ in range(n)])
    for message in messages:
        assert message.index < n, message.index
        assert message.index not in over, f"answer {message.index} goes on behind its end"
        tokens, text, logprobs = found[message.index]
        assert len(message.logprobs) in (0, len(message.token_ids))
        logprobs += [(each.token_id, each.logprob) for each in message.logprobs]
        found[message.index] = ([*tokens, *message.token_ids], text + message.text, logprobs)
        if message.HasField("end"):
            over.add(message.index)
            assert message.end.usage.completion_tokens == len(found[message.index][0])
    return found


def ends(messages: list[pb.GenerateResponse]) -> int:
    return sum(message.HasField("end") for message in messages)
