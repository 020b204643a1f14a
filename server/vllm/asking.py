"""Messages of vllm.grpc.engine as what the runtime takes: prompts and parameters.

Knows which fields have presence and what a zero means where they have none. Does not know ranges:
SamplingParams refuses what is outside. Keeps true: what this runtime does not do is refused by name
before anything runs, and never left out.
"""

import dataclasses
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from runtime.request import Constraint, SamplingParams
from server.rpc.served import Asked, Served, seed_of
from server.rpc.status import UnsupportedError

_UNSUPPORTED = {
    "images": ("mm_inputs", "extra_mm_inputs", "media_refs"),
    "taking over another worker's keys": ("kv_transfer_params", "kv_transfer_params_json"),
}
_PLAIN = (
    *("top_k", "min_p", "min_tokens", "ignore_eos", "skip_special_tokens"),
    *("presence_penalty", "frequency_penalty"),
)
_OPTIONAL = ("temperature", "logprobs", "prompt_logprobs")
_ONE_IF_ZERO = ("top_p", "repetition_penalty", "n")  # what is off, or alone, is a one here


def asked(request: pb.GenerateRequest, served: Served) -> Asked:
    """Raises ValueError, UnsupportedError."""
    _check_supported(request)
    kind = request.WhichOneof("input")
    if kind == "tokenized":
        return served.tokens(tuple(request.tokenized.input_ids))
    if kind == "text":
        return served.text(request.text)
    raise ValueError("input: one of tokenized and text is needed")


def sampling(
    message: pb.SamplingParams, prompt: Asked, served: Served, *, temperature: float
) -> SamplingParams:
    """`temperature`: where the message has none. Raises ValueError naming the field.

    Tokens are limited to the room behind the prompt: a gateway passes on whatever it is asked for.
    """
    values: dict[str, Any] = {"temperature": temperature}
    values |= {name: getattr(message, name) for name in _PLAIN}
    values |= {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    values |= {name: getattr(message, name) or 1 for name in _ONE_IF_ZERO}
    params = SamplingParams(
        **values,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else served.room(prompt),
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        include_stop_str=message.include_stop_str_in_output,
        seed=seed_of(message.seed if message.HasField("seed") else None),
        logit_bias=dict(message.logit_bias),
        constraint=_constraint(message, prompt, served),
    )
    most = min(params.max_tokens, served.room(prompt))
    return dataclasses.replace(params, max_tokens=most, min_tokens=min(params.min_tokens, most))


def _constraint(message: pb.SamplingParams, prompt: Asked, served: Served) -> Constraint | None:
    kind = message.WhichOneof("constraint")
    if kind is None or (kind == "json_object" and not message.json_object):
        return None
    after = not message.grammar_from_first_token and served.thinks(prompt)
    if kind == "choice":
        choices = tuple(message.choice.choices)
        return Constraint(kind="choice", choices=choices, after_reasoning=after)
    if kind == "json_object":
        return Constraint(kind="json_object", after_reasoning=after)
    ours = "ebnf" if kind == "grammar" else kind
    return Constraint(kind=ours, source=getattr(message, kind), after_reasoning=after)


def _check_supported(request: pb.GenerateRequest) -> None:
    given = {field.name for field, _ in request.ListFields()}
    for what, names in _UNSUPPORTED.items():
        if found := sorted(given.intersection(names)):
            raise UnsupportedError(f"{found[0]}: {what} is not done here")
    if request.sampling_params.HasField("truncate_prompt_tokens"):
        raise UnsupportedError("truncate_prompt_tokens: prompts are not cut")
    if request.HasField("data_parallel_rank") and request.data_parallel_rank != 0:
        raise ValueError(f"data_parallel_rank = {request.data_parallel_rank}: there is 0 alone")
