"""The first request of a process, its own: what is slow once is slow before anybody waits.

Knows the way of a request through one Served. Keeps true: when it returns, the slots that it was
asked for have decoded together, and text, template, logprobs and a constraint have been used;
nothing of it stays in the prefix cache, since its prompt is shorter than a block.
"""

from runtime.chat import chat_of
from runtime.request import Constraint, SamplingParams
from runtime.service import ServiceFailedError
from server.rpc.served import Reading, Served

_ID = "warming"
_TOKENS = 8


async def warm(served: Served, *, answers: int) -> None:
    """`answers` at once. Raises ServiceFailedError where the engine cannot answer."""

    def read() -> Reading:
        text = "hello"
        if served.template is not None:
            text = served.template.render(
                chat_of({"messages": [{"role": "user", "content": text}]})
            )
        served.tokenizer.encode(text)  # which need not fit the context
        prompt = served.tokens((served.tokenizer.bos_id,))
        params = SamplingParams(
            n=answers,
            max_tokens=min(served.room(prompt), _TOKENS),
            ignore_eos=True,
            logprobs=1,
            constraint=Constraint(kind="regex", source=".*"),
        )
        return served.request(_ID, prompt, params)

    opened = await served.open(_ID, read, size=0)
    try:
        async for output in opened.stream:
            if output.end is not None and output.end.reason == "failed":
                raise ServiceFailedError(output.end.message)
    finally:
        served.close(opened.key)
