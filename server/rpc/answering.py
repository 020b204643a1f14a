"""The runtime's outputs as messages of fourstep.v1.

Knows both sides' fields. Does not know streams or errors. Keeps true: joined, the messages of an
answer are the same whether it comes step by step or token by token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fourstep.v1 import inference_pb2 as pb

from runtime.answer import End, Output
from runtime.logprobs import TokenLogprobs
from runtime.parsers.answer import AnswerParser, Delta, ToolChoice
from runtime.request import Step
from runtime.tokenizer import Tokenizer
from server.rpc.served import Asked

_REASONS = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}


@dataclass(kw_only=True)
class Answers:
    """The answers of one request. `parse`: whether reasoning and calls are told apart."""

    request_id: str
    tokenizer: Tokenizer
    prompt: Asked
    parse: bool
    tool_choice: ToolChoice
    skip_special: bool
    seed: int
    token_by_token: bool
    _parsers: dict[int, AnswerParser] = field(default_factory=dict)

    def messages(self, output: Output) -> Iterator[pb.GenerateResponse]:
        """Of one output that has a step."""
        step = output.step
        assert step is not None
        cuts = range(1, 1 + len(step.token_ids)) if self.token_by_token else (len(step.token_ids),)
        start = 0
        for end in cuts:
            last = end == len(step.token_ids)
            yield self._message(output, step, start, end, first=start == 0, last=last)
            start = end

    def _message(
        self, output: Output, step: Step, start: int, stop: int, *, first: bool, last: bool
    ) -> pb.GenerateResponse:
        tokens, text = step.token_ids[start:stop], "".join(step.pieces[start:stop])
        message = pb.GenerateResponse(
            request_id=self.request_id,
            index=output.index,
            token_ids=tokens,
            text=text,
            drafted=len(step.drafted) if first else 0,
            accepted=max(0, min(step.accepted, stop) - start),
        )
        if output.logprobs is not None:
            message.logprobs.extend(map(_logprob, output.logprobs[start:stop]))
        if output.prompt_logprobs is not None and first:
            message.prompt_logprobs.extend(map(_logprob, output.prompt_logprobs))
        end = output.end if last else None
        reasoning_tokens = self._parse(message, output.index, tokens, text, over=end is not None)
        if end is not None:
            message.end.CopyFrom(self._end(end, reasoning_tokens))
        return message

    def _parse(
        self,
        message: pb.GenerateResponse,
        index: int,
        tokens: Sequence[int],
        text: str,
        *,
        over: bool,
    ) -> int:
        if not self.parse:
            return 0
        parser = self._parsers.get(index) or self._parser(index)
        deltas = [parser.push(tokens, text)] + ([parser.finish()] if over else [])
        message.reasoning = "".join(delta.reasoning for delta in deltas)
        message.content = "".join(delta.content for delta in deltas)
        for delta in deltas:
            message.tool_calls.extend(_calls(delta))
        return deltas[-1].reasoning_tokens

    def _parser(self, index: int) -> AnswerParser:
        parser = self._parsers[index] = AnswerParser(
            self.tokenizer,
            request_id=f"{self.request_id}-{index}",
            prompt_ids=self.prompt.ids,
            tools=self.prompt.tools,
            tool_choice=self.tool_choice,
            skip_special=self.skip_special,
        )
        return parser

    def _end(self, end: End, reasoning_tokens: int) -> pb.End:
        numbers = end.numbers
        usage = pb.Usage(
            prompt_tokens=numbers.prompt_tokens,
            cached_tokens=numbers.cached_tokens,
            completion_tokens=numbers.tokens,
            reasoning_tokens=reasoning_tokens,
            steps=numbers.steps,
            drafted_tokens=sum(numbers.drafted_at),
            accepted_tokens=sum(numbers.right_at),
            accepted_histogram=numbers.accepted,
            seed=self.seed,
            queue_seconds=numbers.queued_s,
            total_seconds=numbers.total_s,
        )
        if numbers.first_token_s is not None:
            usage.first_token_seconds = numbers.first_token_s
        message = pb.End(reason=_REASONS[end.reason], usage=usage)
        if isinstance(end.matched, int):
            message.matched_token_id = end.matched
        elif end.matched is not None:
            message.matched_stop = end.matched
        return message


def _logprob(found: TokenLogprobs) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token_id=found.token,
        logprob=found.logprob,
        top=[pb.TopLogprob(token_id=token, logprob=value) for token, value in found.top],
    )


def _calls(delta: Delta) -> Iterator[pb.ToolCallDelta]:
    for call in delta.tool_calls:
        message = pb.ToolCallDelta(index=call.index, arguments=call.arguments)
        if call.name is not None:
            message.name = call.name
        if call.id is not None:
            message.id = call.id
        yield message
