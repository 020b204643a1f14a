"""Held-out measurements with the training model: perplexity, tasks, drafts.

Knows held-out library rows and chats; does not know training. A chat counts as exact when every
answer token is the argmax after the true ones before it, which is when greedy decoding writes
exactly this answer. Keeps true: measuring changes nothing.

Legend: B batch, T sequence, D depth.
"""

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from models.recipe.data import (
    ANSWER,
    HELD_OUT_CHATS,
    PAD_ID,
    ROW,
    SEED,
    TOKEN,
    Batch,
    Data,
    as_batch,
    library_rows,
)
from models.recipe.model import Model
from models.recipe.tasks import MAKERS, Chat, generate, is_right, is_well_formed

MICRO_ROWS = 8
LONGEST_CHAT = 384
LONGEST_ANSWER = 96
GENERATED_TOGETHER = 100


def held_out_chats() -> list[Chat]:
    """The chats of data.chats_held_out, in its order."""
    stream = generate(SEED, held_out=True)
    return [next(stream) for _ in range(HELD_OUT_CHATS)]


def following_tokens(tokens: Tensor, depths: int) -> Tensor:
    """[B, T + 1] -> [B, T, depths]: token i + 1 + d of each slot i, padding past the end."""
    padded = F.pad(tokens[:, 1:], (0, depths - 1), value=PAD_ID)
    return padded.unfold(1, depths, 1)


def tokens_a_step(right_BTD: Tensor, counted_BT: Tensor) -> float:
    """One plus the mean run of right drafts, over the counted slots."""
    runs = right_BTD.long().cumprod(-1).sum(-1)
    return 1.0 + float((runs * counted_BT).sum() / counted_BT.sum())


def prompt_of(row: np.ndarray) -> list[int]:
    """The tokens before the answer of a packed chat."""
    return (row[: int(np.argmax((row & ANSWER) > 0))] & TOKEN).tolist()


class Evaluator:
    """Scores on `rows` held-out library rows and `chats` held-out chats."""

    def __init__(self, data: Data, device: torch.device, *, rows: int, chats: int) -> None:
        self.device = device
        offsets = np.linspace(0, len(data.library_held_out) - ROW, rows).astype(np.int64)
        self.library = library_rows(data.library_held_out, offsets)
        packed = data.chats_held_out[:, :LONGEST_CHAT]
        fits = data.chats_held_out[:, LONGEST_CHAT] == PAD_ID
        self.numbers = np.flatnonzero(fits)[:chats]
        self.chats = packed[self.numbers]
        tasks = [chat.task for chat in held_out_chats()]
        self.tasks = [tasks[number] for number in self.numbers]

    def _batches(self, *, library: bool) -> list[Batch]:
        if library:
            splits = np.array_split(self.library, -(-len(self.library) // MICRO_ROWS))
            return [as_batch(part, np.zeros((0, ROW), np.uint16)) for part in splits]
        no_rows = np.zeros((0, LONGEST_CHAT + 1), np.int64)
        return [as_batch(no_rows, part) for part in self._chat_parts()]

    def _chat_parts(self) -> list[np.ndarray]:
        return np.array_split(self.chats, -(-len(self.chats) // (2 * MICRO_ROWS)))

    def _move(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        arrays = batch.tokens, batch.starts, batch.weights
        tokens, starts, weights = (torch.from_numpy(a).to(self.device) for a in arrays)
        return tokens, starts, weights

    @torch.no_grad()
    def library_perplexity(self, model: Model, *, sparse: bool) -> float:
        total, count = 0.0, 0
        for batch in self._batches(library=True):
            tokens, starts, _ = self._move(batch)
            logits = model.trunk(tokens[:, :-1], model.place(starts), sparse=sparse).logits
            nll = F.cross_entropy(
                logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum"
            )
            total, count = total + float(nll), count + starts.numel()
        return math.exp(total / count)

    @torch.no_grad()
    def chat_scores(self, model: Model, *, sparse: bool) -> dict[str, float]:
        """Perplexity of answer tokens and the share of exact answers, overall and by task."""
        exact: list[bool] = []
        total, count = 0.0, 0.0
        for batch, part in zip(self._batches(library=False), self._chat_parts(), strict=True):
            tokens, starts, _ = self._move(batch)
            logits = model.trunk(tokens[:, :-1], model.place(starts), sparse=sparse).logits
            flags = np.pad(part, ((0, 0), (0, 1)))[:, 1:]
            answer = torch.from_numpy((flags & ANSWER) > 0).to(self.device)
            nll = F.cross_entropy(
                logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
            ).view(answer.shape)
            total, count = total + float((nll * answer).sum()), count + float(answer.sum())
            right = (logits.argmax(-1) == tokens[:, 1:]) | ~answer
            exact += right.all(1).tolist()
        scores = {"answers_ppl": math.exp(total / count), "exact": sum(exact) / len(exact)}
        for task in MAKERS:
            mine = [ok for ok, name in zip(exact, self.tasks, strict=True) if name == task]
            scores[f"exact_{task}"] = sum(mine) / max(1, len(mine))
        return scores

    def trunk_scores(self, model: Model, *, sparse: bool) -> dict[str, float]:
        library = self.library_perplexity(model, sparse=sparse)
        return {"library_ppl": library} | self.chat_scores(model, sparse=sparse)

    @torch.no_grad()
    def _right_drafts(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """Whether each depth's draft is the backbone's argmax [B, T, D], and which slots count."""
        tokens, starts, weights = self._move(batch)
        place, depths = model.place(starts), model.dims.mtp_layers
        trunk = model.trunk(tokens[:, :-1], place, sparse=True)
        best = trunk.logits.argmax(-1)
        drafts = model.mtp(trunk.residual, following_tokens(tokens, depths), place)
        size = best.shape[1] - depths
        right = [
            draft.argmax(-1)[:, :size] == best[:, depth + 1 : depth + 1 + size]
            for depth, draft in enumerate(drafts)
        ]
        # a slot counts when the whole step it opens lies in generated text
        counted = weights.unfold(1, depths + 1, 1).amin(-1)[:, :size] >= 1.0
        return torch.stack(right, -1), counted

    def draft_scores(self, model: Model) -> dict[str, float]:
        """Teacher-forced tokens a step and agreement by depth, on library text and on answers."""
        scores: dict[str, float] = {}
        for kind in ("library", "chat"):
            found = [self._right_drafts(model, b) for b in self._batches(library=kind == "library")]
            right = torch.cat([r for r, _ in found])
            counted = torch.cat([c for _, c in found])
            scores[f"{kind}_tokens_a_step"] = tokens_a_step(right, counted)
            for depth in range(right.shape[-1]):
                share = (right[..., depth] * counted).sum() / counted.sum()
                scores[f"{kind}_agree{depth + 1}"] = float(share)
        return scores

    def generated_scores(self, model: Model, tokenizer: Tokenizer) -> dict[str, float]:
        """Greedy answers to the held-out chats: well-formed and right shares, by task."""
        chats = [held_out_chats()[number] for number in self.numbers]
        prompts = [prompt_of(row) for row in self.chats]
        texts = greedy_answers(model, tokenizer, prompts, self.device)
        scores = {"well_formed": float(np.mean([is_well_formed(text) for text in texts]))}
        verdicts = [is_right(chat, text) for chat, text in zip(chats, texts, strict=True)]
        for task in MAKERS:
            mine = [ok for ok, name in zip(verdicts, self.tasks, strict=True) if name == task]
            scores[f"right_{task}"] = float(np.mean(mine)) if mine else float("nan")
        return scores


def greedy_answers(
    model: Model, tokenizer: Tokenizer, prompts: list[list[int]], device: torch.device
) -> list[str]:
    """Greedy continuations up to `<|im_end|>`, by recomputing every sequence at every token."""
    end = tokenizer.token_to_id("<|im_end|>")
    answers: list[list[int]] = [[] for _ in prompts]
    # prompts of similar length together: the longest sets the cost
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    for at in range(0, len(order), GENERATED_TOGETHER):
        going = order[at : at + GENERATED_TOGETHER]
        while going:
            rows = [prompts[number] + answers[number] for number in going]
            for number, token in zip(going, next_tokens(model, rows, device), strict=True):
                answers[number].append(token)
            going = [n for n in going if answers[n][-1] != end and len(answers[n]) < LONGEST_ANSWER]
    return [tokenizer.decode(ids, skip_special_tokens=False) for ids in answers]


@torch.no_grad()
def next_tokens(model: Model, rows: list[list[int]], device: torch.device) -> list[int]:
    """The argmax after each of `rows`, which may differ in length."""
    window = model.dims.window
    size = -(-max(map(len, rows)) // window) * window
    padded = torch.tensor([row + [PAD_ID] * (size - len(row)) for row in rows], device=device)
    trunk = model.trunk(padded, model.place(torch.zeros_like(padded)), sparse=True)
    last = torch.tensor([len(row) - 1 for row in rows], device=device)
    return trunk.logits[torch.arange(len(rows), device=device), last].argmax(-1).tolist()


def load_tokenizer(work: Path) -> Tokenizer:
    """The tokenizer that the data stage wrote."""
    return Tokenizer.from_file(str(work / "tokenizer" / "tokenizer.json"))
