"""The runtime's outputs as messages of vllm.grpc.engine.

Knows both sides' fields. Does not know streams or errors. Keeps true: with or without streaming
there is one complete message for each answer, with all of its tokens, after its chunks; joined, the
chunks say the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from runtime.answer import End, Output
from runtime.logprobs import TokenLogprobs


@dataclass(kw_only=True)
class _Whole:
    """What an answer has put out so far."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt: pb.InputLogProbs | None = None
    cached: int = 0


@dataclass(kw_only=True)
class Answers:
    """The answers of one request to `prompt`. `stream`: chunks as they come are wanted."""

    prompt: Sequence[int]
    stream: bool
    _whole: dict[int, _Whole] = field(default_factory=dict)

    def messages(self, output: Output) -> Iterator[pb.GenerateResponse]:
        """Of one output that has a step."""
        assert output.step is not None
        whole = self._whole.setdefault(output.index, _Whole())
        if output.begun is not None:
            whole.cached = output.begun.cached_tokens
        told = output.prompt_logprobs
        prompt = None if told is None else _input_logprobs(self.prompt, told)
        whole.tokens += output.step.token_ids
        if self.stream:
            yield pb.GenerateResponse(chunk=self._chunk(output, whole, prompt))
        else:
            whole.logprobs += output.logprobs or ()
            whole.prompt = prompt or whole.prompt
        if output.end is not None:
            complete = _complete(output.index, self._whole.pop(output.index), output.end)
            yield pb.GenerateResponse(complete=complete)

    def _chunk(
        self, output: Output, whole: _Whole, prompt: pb.InputLogProbs | None
    ) -> pb.GenerateStreamChunk:
        assert output.step is not None
        # Counts of a chunk are its own; the reader adds them up.
        return pb.GenerateStreamChunk(
            index=output.index,
            token_ids=output.step.token_ids,
            prompt_tokens=len(self.prompt),
            completion_tokens=len(output.step.token_ids),
            cached_tokens=whole.cached,
            output_logprobs=_output_logprobs(output.logprobs or ()),
            input_logprobs=prompt,
        )


def _complete(index: int, whole: _Whole, end: End) -> pb.GenerateComplete:
    numbers = end.numbers
    message = pb.GenerateComplete(
        index=index,
        output_ids=whole.tokens,
        finish_reason=end.reason,
        prompt_tokens=numbers.prompt_tokens,
        completion_tokens=numbers.tokens,
        cached_tokens=numbers.cached_tokens,
        output_logprobs=_output_logprobs(whole.logprobs),
        input_logprobs=whole.prompt,
        spec_accepted_tokens=sum(numbers.right_at),
        spec_draft_tokens=sum(numbers.drafted_at),
    )
    if isinstance(end.matched, int):
        message.matched_token_id = end.matched
    elif end.matched is not None:
        message.matched_stop_str = end.matched
    return message


def _output_logprobs(found: Sequence[TokenLogprobs]) -> pb.OutputLogProbs | None:
    if not found:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[one.logprob for one in found],
        token_ids=[one.token for one in found],
        top_logprobs=_tops(found),
    )


def _input_logprobs(prompt: Sequence[int], found: Sequence[TokenLogprobs]) -> pb.InputLogProbs:
    """The first token of a prompt has none, and is there without."""
    tops = _tops(found)
    return pb.InputLogProbs(
        token_logprobs=[
            pb.InputTokenLogProb(),
            *(pb.InputTokenLogProb(value=one.logprob) for one in found),
        ],
        token_ids=prompt,
        top_logprobs=[pb.TopLogProbs(), *tops] if tops else [],
    )


def _tops(found: Sequence[TokenLogprobs]) -> list[pb.TopLogProbs]:
    """Empty where none was asked for."""
    return [
        pb.TopLogProbs(
            token_ids=[token for token, _ in one.top], values=[value for _, value in one.top]
        )
        for one in found
        if one.top
    ]
