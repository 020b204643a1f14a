"""The exported checkpoint under the real runtime: greedy text, tasks and speed in tokens a step.

Knows held-out prompts and how their answers are checked; runs runtime.engine in bf16 with three
drafts on CPU. Does not know training. Keeps true: measuring changes nothing.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from graphs.checkpoint import Checkpoint
from models.recipe.data import Data, library_rows
from models.recipe.evaluate import held_out_chats, prompt_of
from models.recipe.tasks import MAKERS, is_right, is_well_formed
from runtime.engine import Engine
from runtime.generate import generate
from runtime.numbers import summarise
from runtime.request import SamplingParams, Step

CONTEXT = 1024
PROMPT_TOKENS, NEW_TOKENS = 64, 128  # of a library prompt
ANSWER_TOKENS = 120
LONGEST_PROMPT = 512
REPEAT = 8  # n-grams that show a loop


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One greedy generation."""

    prompt: int
    steps: tuple[Step, ...]

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step.token_ids]


def tokens_a_step(answers: Sequence[Answer]) -> dict[str, float]:
    """Tokens of all decode steps over their number, and the acceptance of each draft position."""
    summaries = [summarise(answer.prompt, answer.steps) for answer in answers]
    steps = sum(summary.steps for summary in summaries)
    tokens = sum(summary.completion_tokens - 1 for summary in summaries)
    scores = {"tokens_a_step": tokens / steps}
    decode = [step for answer in answers for step in answer.steps[1:]]
    for position in range(max(len(step.drafted) for step in decode)):
        verified = sum(len(step.drafted) > position for step in decode)
        accepted = sum(step.accepted > position for step in decode)
        scores[f"accepted{position + 1}"] = accepted / verified
    return scores


def repeated_share(texts: Iterable[Sequence[int]], size: int = REPEAT) -> float:
    """Share of n-grams that occurred before in the same text."""
    total = again = 0
    for text in texts:
        grams = [tuple(text[at : at + size]) for at in range(len(text) - size + 1)]
        total, again = total + len(grams), again + len(grams) - len(set(grams))
    return again / total


class Judge:
    """Greedy runs of the checkpoint in `folder` over held-out prompts."""

    def __init__(self, folder: Path, data: Data) -> None:
        checkpoint = Checkpoint.open(folder)
        self.engine = Engine(checkpoint.config, checkpoint.load(), context=CONTEXT)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.data = data

    def _run(self, prompt: list[int], params: SamplingParams) -> Answer:
        return Answer(prompt=len(prompt), steps=tuple(generate(self.engine, prompt, params)))

    def library(self, prompts: int) -> dict[str, float]:
        """Continuations of `prompts` places in held-out files, as far apart as they can be."""
        stream = self.data.library_held_out
        offsets = np.linspace(0, len(stream) - PROMPT_TOKENS, prompts).astype(np.int64)
        rows = library_rows(stream, offsets, PROMPT_TOKENS - 1)
        params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
        answers = [self._run(row.tolist(), params) for row in rows]
        repeated = repeated_share(answer.tokens for answer in answers)
        return {"prompts": prompts, **tokens_a_step(answers), f"repeated_{REPEAT}_grams": repeated}

    def chats(self, count: int) -> dict[str, float]:
        """Answers to the first `count` held-out chats whose prompt fits."""
        fitting = (
            (chat, prompt)
            for chat, row in zip(held_out_chats(), self.data.chats_held_out, strict=True)
            if len(prompt := prompt_of(row)) <= LONGEST_PROMPT
        )
        asked = list(itertools.islice(fitting, count))
        params = SamplingParams(max_tokens=ANSWER_TOKENS)
        answers = [self._run(prompt, params) for _, prompt in asked]
        texts = [self.tokenizer.decode(a.tokens, skip_special_tokens=False) for a in answers]
        scores = {"chats": len(asked), **tokens_a_step(answers)}
        scores["well_formed"] = float(np.mean([is_well_formed(text) for text in texts]))
        verdicts = [
            (chat, is_right(chat, text)) for (chat, _), text in zip(asked, texts, strict=True)
        ]
        for task in MAKERS:
            mine = [right for chat, right in verdicts if chat.task == task]
            scores[f"right_{task}"] = float(np.mean(mine)) if mine else float("nan")
        calls = [right for chat, right in verdicts if chat.calls]
        scores["right_tool_calls_alone"] = float(np.mean(calls)) if calls else float("nan")
        return scores
